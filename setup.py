"""Experiments, bases and sweeps lie at the top of a clone, where people look; a wheel carries them inside lm."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
SHIPPED = [path.relative_to(HERE) for folder in ("experiments", "sweeps") for path in (HERE / folder).rglob("*.yaml")]


class WithExperiments(build_py):
    """Copies them to lm/shipped, which lm/config/reading.py reads; an editable installation reads the clone's own."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for path in SHIPPED:
                place = Path(self.build_lib, "lm", "shipped", path)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(HERE / path, place)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        ours = [] if self.editable_mode else [str(Path(self.build_lib, "lm", "shipped", path)) for path in SHIPPED]
        return [*super().get_outputs(include_bytecode), *ours]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *map(str, SHIPPED)]


setup(cmdclass={"build_py": WithExperiments})
