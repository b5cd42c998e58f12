"""One cell: a configuration, checked and identified."""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning.pytorch.accelerators import AcceleratorRegistry

from lm.config.components import blame, build, plain_options, resolve
from lm.config.fingerprint import behaviour_of, code_of
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, canonical, nearest, run_id, text_id
from lm.data import IGNORED
from lm.data.batch import Data
from lm.data.tokens import Facts
from lm.model.count import flops_per_token
from lm.model.parametrization import scales, without_standard
from lm.model.transformer import Model, initialized
from lm.training import callbacks
from lm.training.adapter import quiet
from lm.training.recorder import Recorder
from lm.training.rehearsal import tried
from lm.training.run import AUTO, EXECUTION, MAY_BE_NONE, SETTINGS, UNSOUND, Run, Trainer
from lm.training.schedule import Schedule, in_steps
from lm.training.sharded import Processes, processes
from lm.training.strategies import check_model, check_sharded

MOST_PARAMETERS = 10**12

TEXT = frozenset(("corpus", "tokenizer", "split"))
"""Settings of the data whose effect is the text itself, known by its fingerprint and the tokenizer's hash."""


@dataclass(frozen=True)
class Opened:
    """What a cell describes, built, with its text at hand."""

    run: Run
    data: Data
    facts: Facts

    def model(self) -> Model:
        """The model as the cell's seed initialises it."""
        return initialized(self.run.model, self.facts.vocabulary, self.data.context, self.run.seed)


@dataclass(frozen=True)
class Cell:
    """One run, checked and identified.

    Args:
        config: the resolved configuration.
        facts: what its text came to.
        id: the hash of what it computes.
    """

    config: Tree
    facts: Facts
    id: str

    def open(self) -> Opened:
        """Builds what the cell describes."""
        return opened(build(self.config, Run), self.facts)


def opened(run: Run, facts: Facts) -> Opened:
    """A run with its data, whose text is prepared already."""
    with blame("data"):
        data = run.data(run.order_seed)
    data.facts = facts
    data.setup("fit")
    return Opened(run, data, facts)


IDENTITY = 1
"""Version of what is hashed below, apart from the versions of what lies on disk: another would orphan every cell."""


def identity(config: Tree, facts: Facts) -> str:
    """The hash of what a resolved configuration computes: where the text lies and how the run is executed left out.

    Code is part of it: of classes named by their dotted path, and as the behaviour versions of this package's parts.
    """
    return run_id(_identified(config, facts))


def _identified(config: Tree, facts: Facts) -> Tree:
    """What is hashed."""
    defaults = plain_options(Trainer, 1)
    trainer = {
        key: value
        for key, value in config["trainer"].items()
        if key not in EXECUTION and key not in UNSOUND and value != defaults.get(key)
    }
    if (own := callbacks.identified(trainer.pop("callbacks", None))) != []:
        trainer["callbacks"] = own
    options = config["data"]["init_args"].items()
    data = {"class_path": config["data"]["class_path"], **{key: value for key, value in options if key not in TEXT}}
    what = {**config, "trainer": trainer, "data": data}
    what.pop("evaluate", None)
    if what.get("data_seed") == what["seed"]:  # the same order as where nothing is said of it
        del what["data_seed"]
    what["model"] = without_standard(config["model"])
    raised = {"code": code_of(what), "behaviour": behaviour_of(what)}
    added = {name: found for name, found in raised.items() if found}
    return {"format": IDENTITY, "config": what, "text": facts.identity(), **added}


def seedless(config: Tree) -> Tree:
    """What configurations have in common that differ in their seeds alone."""
    return {key: None if key == "seed" else value for key, value in config.items() if key != "data_seed"}


SEED = "\0seed\0"
"""Stands where a seed is to be put."""


def seeded(cell: Cell, seeds: Sequence[int]) -> list[Cell]:
    """The same cell with each of these seeds, which share all of the configuration but the seed.

    What is hashed differs in the seed alone, so that it is written out once.
    """
    configs = [{**cell.config, "seed": seed} for seed in seeds]
    if cell.config.get("data_seed") is not None:  # which of the seeds may be
        return [Cell(config, cell.facts, identity(config, cell.facts)) for config in configs]
    parts = canonical(_identified({**cell.config, "seed": SEED}, cell.facts)).split(canonical(SEED))
    if len(parts) != 2:  # a configuration that holds that very text
        return [Cell(config, cell.facts, identity(config, cell.facts)) for config in configs]
    written = (canonical(seed).join(parts) for seed in seeds)
    return [Cell(config, cell.facts, text_id(one)) for config, one in zip(configs, written, strict=True)]


def with_seed(cell: Cell, seed: int) -> Cell:
    """The same cell with another seed."""
    config = {**copy.deepcopy(cell.config), "seed": seed}
    return replace(cell, config=config, id=identity(config, cell.facts))


def check(tree: Tree) -> Cell:
    """Resolves a configuration, prepares its text and tries its model on one row: a cell that can be trained.

    Raises:
        InputError: for anything that would keep the cell from being trained.
    """
    _refuse_auto(tree)
    config = resolve(tree, Run)
    if config["data_seed"] is None:
        del config["data_seed"]
    config["trainer"]["callbacks"] = callbacks.resolved(tree["trainer"].get("callbacks"))
    callbacks.built(config["trainer"]["callbacks"])
    run: Run = build(config, Run)
    _settle_warmup(config, run.optim.schedule)
    facts = _facts(canonical(config["data"]), run)
    data = opened(run, facts).data
    among = _check_execution(run, data, config["trainer"])
    if among.model_is_shared or (among.rows > 1 and not config["trainer"]["sync_batchnorm"]):
        with blame("model"), torch.device("meta"):
            check_model(run.model(facts.vocabulary, data.context), run.optim.optimizer, among)
    longest = max(run.evaluate.lengths, default=0) if run.evaluate else 0
    if longest + 1 > facts.tokens["validation"]:
        raise InputError(
            f"evaluate.lengths: {longest} tokens of context need as many and one more, and the validation split has "
            f"{facts.tokens['validation']}; give more text or shorter lengths"
        )
    _model_sizes(config, facts, run, data)
    _try_optim(run, config)
    return Cell(config, facts, identity(config, facts))


def checked_unread(tree: Tree) -> Tree:
    """Resolve a configuration and build its parts without its text and without a look at this machine's devices.

    A file that another machine has, or a device, may be missing here; `auto` may stand where it is to be measured.

    Raises:
        InputError: for what no text and no machine would make fit to be trained.
    """
    config = resolve(tree, Run)
    callbacks.built(callbacks.resolved(tree["trainer"].get("callbacks")))
    run: Run = build(config, Run)
    _check_settings(config["trainer"])
    with blame("data"):
        data = run.data(run.order_seed)
    with blame("model"), torch.device("meta"):
        _checked_model(run, STAND_IN_VOCABULARY, data.context)
    _try_optim(run, config)
    return config


STAND_IN_VOCABULARY = 256
"""Tokens of a text that is not read."""


def _try_optim(run: Run, config: Tree) -> None:
    """Raise InputError where no optimiser or schedule can be made as `optim` says."""
    with blame("optim"):
        run.optim.try_out(
            config["trainer"]["max_steps"], scales(getattr(run.model, "keywords", {}).get("parametrization"))
        )


def _settle_warmup(config: Tree, schedule: Schedule) -> None:
    """Write a warm-up that is a share into a resolved configuration as the steps that it comes to, which are hashed."""
    if schedule.in_proportion is not None:
        options = config["optim"]["schedule"]["init_args"]
        options["warmup"] = in_steps(schedule.in_proportion, config["trainer"]["max_steps"])


def _refuse_auto(tree: Tree) -> None:
    """What is measured at the start of an experiment is measured nowhere else."""
    trainer = tree.get("trainer")
    for name in AUTO:
        value = trainer.get(name) if isinstance(trainer, Mapping) else None
        if value == "auto":
            raise InputError(
                f"trainer.{name}: auto is measured at the start of `lm fit`, `lm ablate` and `lm sweep`, for all cells "
                "alike; here name one"
            )
        if isinstance(value, str) and value.lower() == "auto":
            raise InputError(f"trainer.{name}: found {shown(value)}; did you mean auto?")


def _checked_model(run: Run, vocabulary: int, context: int) -> Model:
    model = run.model(vocabulary, context)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:z.3g} parameters, expected {MOST_PARAMETERS:z.0e} at most")
    for module in model.modules():
        window = getattr(module, "window", None)
        if window is not None and window > context:
            raise ValueError(f"window={window} must be at most the context, {context} tokens")
    return model


ACCELERATORS = ("auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators()))
"""All that Lightning has the code for, on any machine."""


def _check_settings(settings: Tree) -> None:
    """Refuses what Lightning takes and cannot train with. Raises InputError."""
    for name in ("attention", "compile"):
        if settings[name] is None:
            raise InputError(
                f"trainer.{name}: expected one of {', '.join(str(way).lower() for way in AUTO[name])}, found null"
            )
    for name, (low, high) in SETTINGS.items():
        value = settings[name]
        if value is None and name not in MAY_BE_NONE:
            raise InputError(f"trainer.{name}: expected a number from {low}, found null")
        if isinstance(value, int | float) and not low <= value <= high:
            raise InputError(f"trainer.{name}: expected {low} or more, {high:,} at most, found {value}")
    if (accelerator := settings["accelerator"]) not in ACCELERATORS:
        raise InputError(
            f"trainer.accelerator: no accelerator {shown(accelerator)}.{nearest(accelerator, ACCELERATORS)} "
            f"Choose from {', '.join(ACCELERATORS)}"
        )
    check_sharded(settings)
    every = settings["val_check_interval"]
    if every is not None and not isinstance(every, int | float):
        raise InputError(
            f"trainer.val_check_interval: expected a number of batches, found {shown(every)}; by the clock, "
            "two machines would validate at other steps"
        )
    if (isinstance(every, float) and not 0 < every <= 1) or (isinstance(every, int) and every < 1):
        raise InputError(
            f"trainer.val_check_interval: expected a number of batches from 1, or a share above 0.0, found {every}"
        )


def _check_execution(run: Run, data: Data, settings: Tree) -> Processes:
    """The processes that share the run. Raises InputError where they cannot."""
    _check_settings(settings)
    key = canonical({**settings, "callbacks": None})
    if key not in _worlds:
        with blame("trainer"), quiet():  # Lightning checks accelerator, strategy and precision against this machine
            _worlds[key] = processes(run.trainer(Recorder(Path(), data, lambda *_: None, 0.0)))
    data.check_devices(_worlds[key].rows)
    return _worlds[key]


_worlds: dict[str, Processes] = {}
"""The processes that a trainer with these settings has; settings that arms have in common are checked once."""


_prepared: dict[str, Facts] = {}


def _facts(key: str, run: Run) -> Facts:
    """The prepared text; corpora are read once per process, not once per cell."""
    if key not in _prepared:
        with blame("data"):
            data = run.data(run.order_seed)
        data.prepare_data()
        assert data.facts is not None
        _prepared[key] = data.facts
    return _prepared[key]


@dataclass(frozen=True)
class Sizes:
    """What a cell costs by its shape: trainable parameters, shared ones once; training FLOPs a token, None where a part
    of the model has not been counted; predicted tokens of the first optimiser step."""

    parameters: int
    flops_per_token: float | None
    tokens_per_step: int


_model_sizes_of: dict[str, tuple[int, float | None]] = {}


def _model_sizes(config: Tree, facts: Facts, run: Run, data: Data) -> tuple[int, float | None]:
    """Trainable parameters and FLOPs a token of a model through which one row has gone; once for each model and data.

    Raises:
        InputError: where the model cannot be built, or cannot read the row.
    """
    key = canonical([config["data"], config["model"], config["seed"], facts.vocabulary])
    if key not in _model_sizes_of:
        make = functools.partial(_checked_model, run, facts.vocabulary, data.context)
        batch = next(iter(data.training_batches(0, 1)))
        with blame("model"):
            model = tried(make, [x[:1] for x in batch.inputs])
        try:
            flops = flops_per_token(model, data.context).total
        except InputError:
            flops = None
        _model_sizes_of[key] = sum(p.numel() for p in model.parameters() if p.requires_grad), flops
    return _model_sizes_of[key]


def sizes(cell: Cell) -> Sizes:
    """Counts a cell without memory for its model."""
    found = cell.open()
    data = found.data
    parameters, flops = _model_sizes(cell.config, cell.facts, found.run, data)
    accumulated = data.training_batches(0, cell.config["trainer"]["accumulate_grad_batches"])
    tokens = sum(int((batch.targets_bt != IGNORED).sum()) for batch in accumulated)
    return Sizes(parameters, flops, tokens)
