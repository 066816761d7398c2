"""Sentences that have to be true for a proven guarantee to hold, shared by all mechanisms."""


class Declared(str):
    """A sentence that only the user can confirm; tfdp sees to the others, where it trains."""

    __slots__ = ()


_BETWEEN = (
    "Nothing else trained them in between: no plain model on the same layers, no GradientTape."
)
START = {
    "assumed": Declared(
        "The weights at the start (with the statistics in frozen layers), and any that were set or "
        "loaded later without their ledger, do not depend on these data: they are fresh, or come from "
        "public data. Weights averaged from models that were trained on these data, or trained on "
        "outputs of such models (distillation), do depend on them, unless Ledger.merge added those "
        f"models' ledgers. {_BETWEEN} Nobody checked this."
    ),
    "public": Declared(
        "The user declared that the weights at the start do not depend on these data. " + _BETWEEN
    ),
}
EVERY_RUN = (
    Declared(
        "A record is one row of what was given to training, computed from that record alone, by "
        "constants that do not depend on the others. Scalers, vocabularies, windows or class weights "
        "that were made from all rows break this. Somebody with more records than stated is protected "
        "less (max_examples_per_user)."
    ),
    Declared(
        "The number of steps, over all calls of fit, was fixed beforehand or declared by privacy.plan. "
        "Stopping earlier, or choosing among the weights, by what was released or by held-out data is "
        "covered."
    ),
    "No more steps were taken than are counted.",
)
SECRET_SAMPLE = Declared("Which examples were in a lot stays secret.")
INSECURE_SEED = (
    "The noise (or the secret choice of examples) came from a seed that somebody chose and may know. "
    "Two runs with one seed differ without any noise, so nothing is proven. Leave that "
    "seed away (--insecure_seed, seed=): a public --seed of the initial weights does no harm."
)
OPEN_PLAN = (
    "The training ended, or a file was saved, before the end of its first epoch, whose number of steps "
    "the data do not say, so the number of planned steps is unknown. Pass steps_per_epoch, a dataset "
    "that knows its length, or set a PrivacyBudget."
)
