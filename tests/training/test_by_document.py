"""What a finished cell keeps of each document adds up to what it was judged by, however it was evaluated."""

from pathlib import Path
from typing import Any

import pytest
from helpers import RUN
from small_runs import silent

from lm.config.tree import override
from lm.store.documents import read_documents
from lm.store.store import Store
from lm.training.cell import check
from lm.training.process import Execution
from lm.training.train import train

pytestmark = pytest.mark.slow
LINES = {"class_path": "StdlibText", "init_args": {"size": 60000, "longest": 200}}
MARKED = {"data.corpus": LINES, "data.tokenizer": {"class_path": "BPE", "init_args": {"size": 300}}}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({**MARKED, "trainer.limit_val_batches": 1.0}, "document"),
        ({**MARKED, "trainer.val_check_interval": 5}, "document"),
        ({"trainer.precision": "32-true"}, "stretch"),
    ],
)
def test_documents_add_up_to_the_recorded_loss(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    cell, store = check(override(RUN, changes)), Store(tmp_path)
    train(cell, store, silent, Execution(threads=1))
    record = store.record(cell.id, needed=True)
    documents = read_documents(store.documents(cell.id), record)
    evaluated, nll = record["evaluated"], record["metrics"]["nll"]
    assert evaluated is not None
    assert nll is not None
    assert documents.kind == kind
    assert documents.tokens_d.sum() == evaluated["tokens"]
    assert documents.nll_d.sum() / documents.tokens_d.sum() == pytest.approx(nll, rel=1e-6)
    if kind == "document":
        assert abs(len(documents.tokens_d) - cell.facts.documents["validation"]) <= 1
    test, test_nll = (
        read_documents(store.documents(cell.id, "test_nll"), record, "test_nll"),
        record["metrics"]["test_nll"],
    )
    assert test.kind == kind
    assert test.tokens_d.sum() == record["evaluations"]["test"]["evaluated_tokens"]
    assert test.nll_d.sum() / test.tokens_d.sum() == pytest.approx(test_nll, rel=1e-6)
    assert "clusters" not in record["evaluations"]["test"]
