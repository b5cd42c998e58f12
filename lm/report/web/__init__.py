"""The report as one page of HTML that needs no network: text and tables, the data of its charts, how they are drawn."""
