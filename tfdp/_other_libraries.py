"""What people type who know TensorFlow Privacy or Opacus, and what tfdp has in its place.

This module imports neither TensorFlow nor Keras.
"""

import functools
import inspect
from collections.abc import Callable, Iterable

from tfdp._validate import did_you_mean

# Keywords of other libraries, and where the same thing is said here.
KEYWORDS = {
    "accountant": "Both guarantees are always computed: model.privacy.spent(delta=...).",
    "alphas": "Both guarantees are always computed: model.privacy.spent(delta=...).",
    "data_loader": "Pass the data to make_private_with_epsilon as its third argument, or to model.fit.",
    "grad_sample_mode": "Pass engine='auto', 'ghost', 'vectorized' or 'loop' to make_private.",
    "max_grad_norm": "Its name here is l2_norm_clip, an argument of the private optimizer.",
    "max_physical_batch_size": "Its name here is physical_batch_size, an argument of make_private.",
    "module": "Pass the Keras model as the first argument.",
    "poisson_sampling": "fit(x, y) draws Poisson lots; tfdp.data.make_lots offers other schemes.",
    "target_delta": "Its name here is delta.",
    "target_epsilon": "Its name here is epsilon.",
    "unroll_microbatches": "Leave it out: per-example gradients are always vectorized.",
    "use_xla": "Pass jit_compile=True to model.compile.",
}
_OF_THE_OPTIMIZER = (
    "It belongs to the optimizer: tfdp.DPKerasSGDOptimizer(l2_norm_clip=..., noise_multiplier=...)."
)
# Keywords of private optimizers that other libraries' models and engines take.
ON_A_MODEL = KEYWORDS | {
    "l2_norm_clip": _OF_THE_OPTIMIZER,
    "max_grad_norm": _OF_THE_OPTIMIZER,
    "noise_multiplier": _OF_THE_OPTIMIZER,
    "num_microbatches": _OF_THE_OPTIMIZER,
    "optimizer": "Pass it to model.compile.",
}

# `make_private_with_epsilon` takes the clip norm itself, and makes the optimizer private.
WITH_EPSILON = ON_A_MODEL | {
    "max_grad_norm": "Its name here is l2_norm_clip.",
    "noise_multiplier": "It is computed from epsilon, delta and epochs. Leave it out.",
    "num_microbatches": (
        "Pass a private optimizer that has it as the second argument: "
        "tfdp.DPKerasSGDOptimizer(l2_norm_clip=..., noise_multiplier=..., num_microbatches=...); its "
        "noise multiplier is replaced."
    ),
}
_OWN_LOOP = (
    "A loop of your own is `for logs in model.privacy.steps(x, y, batch_size=..., epochs=...)`; "
    "without one, train with tfdp.make_private(model).fit(x, y)."
)
# Methods of other libraries' private optimizers.
ON_AN_OPTIMIZER = {
    "compute_gradients": _OWN_LOOP,
    "get_gradients": _OWN_LOOP,
    "get_updates": _OWN_LOOP,
    "minimize": _OWN_LOOP,
}
# Members of Opacus' engine and accountants.
ON_PRIVACY = {
    "accountant": "The runs are model.privacy.ledger.runs.",
    "get_epsilon": "It is model.privacy.spent(delta).epsilon here.",
    "get_privacy_spent": "It is model.privacy.spent(delta).epsilon here.",
    "history": "The runs are model.privacy.ledger.runs.",
    "make_private": "Call tfdp.make_private(model).",
    "make_private_with_epsilon": "Call tfdp.make_private_with_epsilon(model, optimizer, (x, y), ...).",
}


def refuse_misspelt(
    where: str,
    given: Iterable[str],
    known: Iterable[str],
    elsewhere: dict[str, str] = KEYWORDS,
) -> None:
    """Raises TypeError for a keyword whose meaning can be guessed; other ones are left to the callee.

    Args:
        where: what was called.
        given: names of the keywords.
        known: names that are valid.
        elsewhere: for names that other libraries use, what to do here, as a sentence.
    """
    known = [*known]
    for name in given:
        hint = f" {elsewhere[name]}" if name in elsewhere else did_you_mean(name, known)
        if name not in known and hint:
            raise TypeError(f"{where} has no argument {name!r}.{hint}")


def keywords_of(function: Callable) -> list[str]:
    """Returns the names of the parameters that a function takes as keywords.

    Args:
        function: any function with a signature.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [n for n, p in inspect.signature(function).parameters.items() if p.kind in kinds]


def answers(elsewhere: dict[str, str], also: Iterable[str] = ()) -> Callable:
    """Decorates a function: keywords of other libraries are answered before Python binds arguments.

    Otherwise Python would say that arguments are missing, which were given under other names.

    Args:
        elsewhere: for names that other libraries use, what to do here, as a sentence.
        also: further names that are valid, besides those of the function's parameters.
    """

    def decorate(function):
        known = [*keywords_of(function), *also]

        @functools.wraps(function)
        def checked(*args, **kwargs):
            refuse_misspelt(function.__name__, kwargs, known, elsewhere)
            return function(*args, **kwargs)

        return checked

    return decorate


def needs(**examples) -> Callable:
    """Decorates a constructor: without one of these keywords it names the class and what to pass.

    Python's own message would name the base class that happens to define the constructor.

    Args:
        **examples: the keywords, each with a value to show.
    """

    def decorate(init):
        @functools.wraps(init)
        def checked(self, *args, **kwargs):
            missing = [name for name in examples if name not in kwargs]
            if missing:
                shown = ", ".join(f"{name}={value}" for name, value in examples.items())
                kind = type(self).__name__
                raise TypeError(
                    f"{kind} needs {' and '.join(missing)}, as keywords. Pass {kind}({shown}, ...); "
                    "or let tfdp.make_private_with_epsilon compute the noise for an epsilon."
                )
            init(self, *args, **kwargs)

        return checked

    return decorate


def refuse_member(owner: object, name: str, elsewhere: dict[str, str]):
    """Raises AttributeError for a member that an object lacks; the end of its `__getattr__`.

    Args:
        owner: the object.
        name: name of the member.
        elsewhere: for names that other libraries use, what to do here, as a sentence.
    """
    kind = type(owner)
    if hasattr(kind, name):
        # A property raised AttributeError, whose own message says why.
        return object.__getattribute__(owner, name)
    hint = ""
    public = name.lstrip("_")  # TensorFlow Privacy has some with an underscore, too
    if public in elsewhere:
        hint = f". {elsewhere[public]}"
    elif not name.startswith("_"):
        hint = did_you_mean(name, [n for n in dir(kind) if not n.startswith("_")])
        hint = hint and f".{hint}"
    message = f"{kind.__name__!r} object has no attribute {name!r}{hint}"
    raise AttributeError(message, name=name, obj=owner)


class PrivacyEngine:
    """Opacus' entry point, which tfdp does not have: the constructor says what to do instead.

    Example:
        >>> import tfdp
        >>> tfdp.PrivacyEngine()
        Traceback (most recent call last):
        ...
        TypeError: tfdp has no PrivacyEngine...
    """

    def __init__(self, *args, **kwargs):
        raise TypeError(_NO_ENGINE)


class ModuleValidator:
    """Opacus' checks of a network, which `tfdp.fix` and `tfdp.make_private` do: any use says so.

    Example:
        >>> import tfdp
        >>> tfdp.ModuleValidator.fix(None)
        Traceback (most recent call last):
        ...
        TypeError: tfdp has no ModuleValidator. Call model = tfdp.fix(model)...
    """

    def __init__(self, *args, **kwargs):
        raise TypeError(_NO_VALIDATOR)

    @staticmethod
    def fix(*args, **kwargs):
        """Raises TypeError, which says what to call."""
        raise TypeError(_NO_VALIDATOR)

    is_valid = validate = fix_and_validate = fix


class BatchMemoryManager:
    """Opacus' cutting of lots, which a private model does itself: the constructor says how.

    Example:
        >>> import tfdp
        >>> tfdp.BatchMemoryManager(max_physical_batch_size=32)
        Traceback (most recent call last):
        ...
        TypeError: tfdp has no BatchMemoryManager. Pass physical_batch_size=... to tfdp.make_private...
    """

    def __init__(self, *args, **kwargs):
        raise TypeError(
            "tfdp has no BatchMemoryManager. Pass physical_batch_size=... to tfdp.make_private or "
            "tfdp.make_private_with_epsilon: the model cuts its lots itself."
        )


def get_noise_multiplier(*args, **kwargs):
    """Opacus' calibration, which tfdp has under another name: raises TypeError, which says it.

    Example:
        >>> import tfdp
        >>> tfdp.get_noise_multiplier(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.01)
        Traceback (most recent call last):
        ...
        TypeError: tfdp has no get_noise_multiplier. Call tfdp.accounting.noise_for(...
    """
    raise TypeError(
        "tfdp has no get_noise_multiplier. Call tfdp.accounting.noise_for(epsilon, delta, "
        'mechanism="dpsgd", sampling="poisson", num_examples=..., lot_size=..., epochs=...); or let '
        "tfdp.make_private_with_epsilon compute the noise and set the budget."
    )


_NO_VALIDATOR = (
    "tfdp has no ModuleValidator. Call model = tfdp.fix(model) to replace the layers that mix "
    "examples; tfdp.make_private(model) checks the model, and its error names the layer and the remedy."
)

_NO_ENGINE = """tfdp has no PrivacyEngine: a Keras model is made private itself. Instead of
    engine.make_private(module=, optimizer=, data_loader=, noise_multiplier=, max_grad_norm=)
write
    model = tfdp.make_private(model)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=, noise_multiplier=, learning_rate=), loss)
    model.fit(x, y, batch_size=, epochs=)   # draws Poisson lots
and instead of engine.make_private_with_epsilon(...)
    model, optimizer, lots = tfdp.make_private_with_epsilon(
        model, optimizer, (x, y), batch_size=, epochs=, epsilon=, delta=, l2_norm_clip=)
    model.compile(optimizer, loss)
    model.fit(lots, epochs=)
engine.get_epsilon(delta) is model.privacy.spent(delta).epsilon here; ModuleValidator.fix is tfdp.fix;
BatchMemoryManager is make_private(model, physical_batch_size=)."""
