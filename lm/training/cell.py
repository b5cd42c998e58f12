"""One cell: a configuration, checked and identified."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from lightning.pytorch.accelerators import AcceleratorRegistry

from lm.config.components import blame, build, plain_options, resolve
from lm.config.fingerprint import behaviour_of, code_of
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, canonical, nearest, run_id
from lm.data import IGNORED
from lm.data.batch import Batch, Data
from lm.data.mixture import pin_revision
from lm.data.text import RowData
from lm.data.tokens import TextStats
from lm.metrics.probe import first_rows, probe
from lm.metrics.tokens import TokenStatistics
from lm.model.flops import flops_per_token
from lm.model.parametrization import scales, without_standard
from lm.model.transformer import Model, checkpoint_activations
from lm.training.adapter import quiet
from lm.training.callbacks import build_callbacks, resolve_callbacks
from lm.training.identified import AUTO, Cell, Sizes
from lm.training.initial_weights import resolve_source
from lm.training.module import score_predictions, with_extras
from lm.training.objective import require_extra_losses, take_extra_losses
from lm.training.optim import tables
from lm.training.recorder import Recorder
from lm.training.run import EXECUTION, MAY_BE_NONE, SETTINGS, UNSOUND, RunConfig, Trainer, build_data, evaluation_of
from lm.training.schedule import in_steps
from lm.training.strategies import Processes, check_model, check_sharded, processes

MOST_PARAMETERS = 10**12

# settings of the data that only determine the text, whose fingerprint and tokenizer hash are in the identity
TEXT = frozenset(("corpus", "tokenizer", "split"))


IDENTITY = 1  # version of the identity, apart from the formats of files: another one would orphan every cell


def identity(config: Tree, facts: TextStats) -> str:
    """Hash all that determines a configuration's numbers: no paths or execution, but code and behaviour versions."""
    return run_id(_identified(config, facts))


def _identified(config: Tree, facts: TextStats) -> Tree:
    """Return the content that is hashed."""
    defaults = plain_options(Trainer, 1)
    left_out, settings = {*EXECUTION, *UNSOUND}, config["trainer"].items()
    trainer = {key: value for key, value in settings if key not in left_out and value != defaults.get(key)}
    if callbacks := [node for node in trainer.pop("callbacks", None) or [] if not node.get("harmless")]:
        trainer["callbacks"] = callbacks
    if source := trainer.get("init_from"):  # wherever it lies
        trainer["init_from"] = source["weights"]
    options = config["data"]["init_args"].items()
    data = {"class_path": config["data"]["class_path"], **{key: value for key, value in options if key not in TEXT}}
    content = {**config, "trainer": trainer, "data": data}
    if tasks := (content.pop("evaluate", None) or {}).get("tasks"):  # by their content, wherever it lies
        content["tasks"] = sorted(task["sha256"] for task in tasks)
    budget = evaluation_of(config).tokens
    if any(drawn_from(config["data"], facts, split) > budget for split in ("validation", "test")):
        content["evaluated_tokens"] = budget
    if content.get("data_seed") == content["seed"]:  # the same order as where nothing is said of it
        del content["data_seed"]
    content["model"] = without_standard(config["model"])
    versions = {"code": code_of(content), "behaviour": behaviour_of(content)}
    added = {name: value for name, value in versions.items() if value}
    return {"format": IDENTITY, "config": content, "text": facts.identity(), **added}


def drawn_from(data: Tree, facts: TextStats, split: str) -> int:
    """Return the tokens, of a split or of its rows, among which those that are evaluated are drawn."""
    tokens, options = facts.tokens.get(split, 0), data["init_args"]
    if data["class_path"] != "PaddedRows":
        return tokens
    return max(tokens, min(options["rows"], facts.documents.get(split, 0)) * int(options["context"]))


def with_seed(cell: Cell, seed: int) -> Cell:
    """Return the cell with another seed."""
    config = {**cell.config, "seed": seed}
    return replace(cell, config=config, id=identity(config, cell.facts))


def check(tree: Tree) -> Cell:
    """Resolve a configuration, prepare its text, run its model on a row. Raises InputError if it cannot be trained."""
    trainer = tree.get("trainer")
    for name in AUTO:
        value = trainer.get(name) if isinstance(trainer, Mapping) else None
        if value == "auto":
            when = "at the start of `lm fit`, `lm ablate` and `lm sweep`, for all cells alike; here name one"
            raise InputError(f"trainer.{name}: auto is measured {when}")
    config = resolve(tree, RunConfig)
    if config["data_seed"] is None:
        del config["data_seed"]
    config["trainer"]["callbacks"] = resolve_callbacks(tree["trainer"].get("callbacks"))
    build_callbacks(config["trainer"]["callbacks"])
    run: RunConfig = build(config, RunConfig)
    if (share := run.optim.schedule.in_proportion) is not None:  # the steps are hashed, not the share
        options = config["optim"]["schedule"]["init_args"]
        options["warmup"] = in_steps(share, config["trainer"]["max_steps"])
    facts = _facts(canonical(config["data"]), run)
    if facts.revision is not None:
        pin_revision(config["data"]["init_args"]["corpus"], facts.revision)
    data = build_data(run, facts)
    if (source := config["trainer"].get("init_from")) is not None:
        with torch.device("meta"):
            model = run.model(facts.vocabulary, data.context)
        config["trainer"]["init_from"] = resolve_source(source, facts, model)
    _check_settings(config["trainer"])
    _limit_validations(tree, config, data)
    key = canonical({**config["trainer"], "callbacks": None})
    if key not in _processes_of:
        with blame("trainer"), quiet():  # Lightning checks accelerator, strategy and precision against this machine
            _processes_of[key] = processes(run.trainer(Recorder(Path(), data)))
    sharing = _processes_of[key]
    data.check_devices(sharing.rows)
    if sharing.model_is_shared or (sharing.rows > 1 and not config["trainer"]["sync_batchnorm"]):
        with blame("model"), torch.device("meta"):
            check_model(run.model(facts.vocabulary, data.context), run.optim.optimizer, sharing)
    if config["trainer"].get("checkpoint_activations"):
        with blame("trainer"), torch.device("meta"):
            checkpoint_activations(run.model(facts.vocabulary, data.context))
    longest = max(run.evaluate.lengths, default=0) if run.evaluate else 0
    if longest + 1 > facts.tokens["validation"]:
        hint = f"and the validation split has {facts.tokens['validation']}; give more text or shorter lengths"
        raise InputError(f"evaluate.lengths: {longest} tokens of context need as many and one more, {hint}")
    if run.evaluate is not None and run.evaluate.tasks:
        from lm.training.harness.tasks import resolve_tasks  # an optional package, and seconds

        config["evaluate"]["tasks"] = resolve_tasks(run.evaluate.tasks, run.evaluate.limit, data.context)
    _model_sizes(config, facts, run, data)
    _try_optim(run, config)
    return Cell(config, facts, identity(config, facts))


def checked_unread(tree: Tree) -> Tree:
    """Resolve a configuration and build its parts, without its text or this machine's devices. Raises InputError."""
    config = resolve(tree, RunConfig)
    build_callbacks(resolve_callbacks(tree["trainer"].get("callbacks")))
    run: RunConfig = build(config, RunConfig)
    _check_settings(config["trainer"])
    data = build_data(run)
    _limit_validations(tree, config, data)
    with blame("model"), torch.device("meta"):
        _checked_model(run, 256, data.context)  # the vocabulary of bytes, as the text is not read
    _try_optim(run, config)
    return config


def _try_optim(run: RunConfig, config: Tree) -> None:
    """Raise InputError if the optimiser or schedule of `optim` cannot be built."""
    with blame("optim"):
        scaled = scales(getattr(run.model, "keywords", {}).get("parametrization"))
        run.optim.try_out(config["trainer"]["max_steps"], scaled)


def _checked_model(run: RunConfig, vocabulary: int, context: int) -> Model:
    """Build a model. Raises ValueError for one that is too large, or windows beyond the context."""
    model = run.model(vocabulary, context)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:z.3g} parameters, expected {MOST_PARAMETERS:z.0e} at most")
    for module in model.modules():
        window = getattr(module, "window", None)
        if window is not None and window > context:
            raise ValueError(f"window={window} must be at most the context, {context} tokens")
    return model


ACCELERATORS = ("auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators()))  # of Lightning, on any machine


def _check_settings(settings: Tree) -> None:
    """Refuse settings that Lightning accepts and cannot train with. Raises InputError."""
    for name in ("attention", "compile"):
        if settings[name] is None:
            listed = ", ".join(str(choice).lower() for choice in AUTO[name])
            raise InputError(f"trainer.{name}: expected one of {listed}, found null")
    for name, (low, high) in SETTINGS.items():
        value = settings[name]
        if value is None and name not in MAY_BE_NONE:
            raise InputError(f"trainer.{name}: expected a number from {low}, found null")
        if isinstance(value, int | float) and not low <= value <= high:
            raise InputError(f"trainer.{name}: expected {low} or more, {high:,} at most, found {value}")
    if (accelerator := settings["accelerator"]) not in ACCELERATORS:
        choices = f"{nearest(accelerator, ACCELERATORS)} Choose from {', '.join(ACCELERATORS)}"
        raise InputError(f"trainer.accelerator: no accelerator {shown(accelerator)}.{choices}")
    check_sharded(settings)
    interval = settings["val_check_interval"]
    if interval is not None and not (isinstance(interval, int) and interval >= 1):
        hint = "" if isinstance(interval, int | float) else "; by the clock, two machines would validate at other steps"
        expected = "expected a number of batches from 1"
        raise InputError(f"trainer.val_check_interval: {expected}, found {shown(interval)}{hint}")


def _limit_validations(tree: Tree, config: Tree, data: Data) -> None:
    """Let validations read a tenth of what is trained since the one before, where a file does not give a number.

    They read whole batches, one at least. A schedule of batch sizes counts with its largest.
    """
    if "limit_val_batches" not in tree["trainer"]:
        trainer = config["trainer"]
        every = trainer["val_check_interval"] or trainer["max_steps"] * trainer["accumulate_grad_batches"]
        rows = (data.batch_size, data.evaluation_batch_size) if isinstance(data, RowData) else (1, 1)
        trainer["limit_val_batches"] = max(1, every * rows[0] // (10 * rows[1]))


_processes_of: dict[str, Processes] = {}  # by the trainer's settings; those that arms have in common are checked once
_prepared: dict[str, TextStats] = {}
_model_sizes_of: dict[str, tuple[int, float | None]] = {}


def _facts(key: str, run: RunConfig) -> TextStats:
    """Return the prepared text; corpora are read once per process, not once per cell."""
    if key not in _prepared:
        data = build_data(run)
        data.prepare_data()
        assert data.facts is not None
        _prepared[key] = data.facts
    return _prepared[key]


def _model_sizes(config: Tree, facts: TextStats, run: RunConfig, data: Data) -> tuple[int, float | None]:
    """Return trainable parameters and FLOPs a token, after a dry run. Raises InputError for a wrong model."""
    optim = [config["optim"][name] for name in ("optimizer", "objective")]
    key = canonical([config["data"], config["model"], config["seed"], facts.vocabulary, optim])
    if key not in _model_sizes_of:
        build_model = functools.partial(_checked_model, run, facts.vocabulary, data.context)
        batch = next(iter(data.training_batches(0, 1)))
        with blame("model"):
            step = functools.partial(try_step, run, config["trainer"]["max_steps"])
            model = dry_run(build_model, first_rows(batch, 1), step)
        try:
            flops = flops_per_token(model, data.context).total
        except InputError:
            flops = None
        _model_sizes_of[key] = sum(p.numel() for p in model.parameters() if p.requires_grad), flops
    return _model_sizes_of[key]


DRY_RUN_MAX_NUMBERS = 2**20  # numbers of a model, and pairs of tokens that it reads, up to which a dry run computes
DRY_RUN_MAX_OWN = 2**24  # the same for a model with parts of a user's own, which a step tries out


def dry_run(build_model: Callable[[], Model], batch: Batch, step: Callable[[Model, Batch], None]) -> Model:
    """Return a model on the meta device, after a `step` of training on a batch to find parts that do not fit together.

    A model that is too large for a step in little time runs on the meta device alone, forwards.
    """
    with torch.device("meta"):
        model = build_model()
    is_builtin = all(type(module).__module__.split(".")[0] in ("lm", "torch") for module in model.modules())
    numbers = [x.numel() for x in (*model.parameters(), *model.buffers())] + [x.numel() ** 2 for x in batch.inputs]
    if sum(numbers) <= (DRY_RUN_MAX_NUMBERS if is_builtin else DRY_RUN_MAX_OWN):
        with torch.random.fork_rng(devices=[]):
            step(build_model(), batch)
    else:
        with torch.device("meta"):
            model(*(x.to("meta") for x in batch.inputs))
    return model


def try_step(run: RunConfig, steps: int, model: Model, batch: Batch) -> None:
    """Take one training step of a run of so many `steps`, with every measurement of training."""
    objective, targets_n = run.optim.objective, batch.targets_bt.flatten()
    logits_nv = model(*batch.inputs).flatten(0, 1)
    with blame("optim.objective"):
        loss = objective.loss(logits_nv, targets_n)
    score_predictions(model, objective, batch.targets_bt)
    with blame("optim.objective"):
        extras = take_extra_losses(model.modules(), objective.extra)
        require_extra_losses(objective.extra, extras)
    with_extras(loss, extras).backward()
    with blame("optim"):
        optimizer, _ = run.optim.build(model.parameters(), steps, tables(model), model.map_rate)
        if not any(group.get("capturable") for group in optimizer.param_groups):  # those need a device of their own
            optimizer.step()
    probe(model, batch)
    model.eval()
    with torch.inference_mode():
        logits_nv = model(*batch.inputs).flatten(0, 1)
        TokenStatistics(torch.ones(logits_nv.shape[1], dtype=torch.int64)).update(logits_nv, targets_n)


def sizes(cell: Cell) -> Sizes:
    """Compute the sizes of a cell without memory for its model."""
    built = cell.open()
    data = built.data
    parameters, flops = _model_sizes(cell.config, cell.facts, built.run, data)
    every, steps = (cell.config["trainer"][name] for name in ("accumulate_grad_batches", "max_steps"))
    if isinstance(data, RowData) and data.plan is not None:
        return Sizes(parameters, flops, round(data.plan.tokens(every * steps) / steps))
    accumulated = data.training_batches(0, every)
    tokens = sum(int((batch.targets_bt != IGNORED).sum()) for batch in accumulated)
    return Sizes(parameters, flops, tokens)


def steps_for(cell: Cell, tokens: float) -> int:
    """Return the steps of a cell, at least one, that read nearest to a number of tokens."""
    data, every = cell.open().data, cell.config["trainer"]["accumulate_grad_batches"]
    if not isinstance(data, RowData) or data.plan is None:
        return max(1, round(tokens / sizes(cell).tokens_per_step))
    steps = 1
    while data.plan.tokens(every * steps) < tokens:
        steps += 1
    before, after = (abs(data.plan.tokens(every * at) - tokens) for at in (steps - 1, steps))
    return max(1, steps - (before < after))
