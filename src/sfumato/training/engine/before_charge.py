# SPDX-License-Identifier: Apache-2.0
"""What is refused before a run is charged, because the run could only fail or learn nothing.

Guarantee  Only public things are looked at: the model before the first step, and settings.
Not here   What is found out by running synthetic rows: `engine.rehearsal`.
"""

from collections.abc import Sequence
from itertools import product

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.tensors import require_size
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.tape.operation import norm_dtype
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.privacy.dp_sgd import DpSgd

__all__ = ["require_finite", "require_room_for_noise"]


def require_finite(model: nn.Module, *, check: bool = True) -> None:
    """Raise if a parameter is NaN, or a trainable one infinite: no step would make it a number.

    Args:
        model: The model, before the first step. All ranks must ask: it may be sharded.
        check: Whether to look, as `Runtime(check=...)` says. A model that somebody else sent may be anything.

    Raises:
        InvalidParameterError: If there is such a parameter. It is named.

    >>> require_finite(nn.Linear(2, 1))
    """
    wrong = [name for name, p in model.named_parameters() if check and not _is_sound(p)]
    if wrong:
        raise InvalidParameterError(
            f"the model has weights that are not finite before the first step, in {wrong}: nothing could be "
            "learned. Initialize them, or load the model again."
        )


def _is_sound(parameter: nn.Parameter) -> bool:
    if is_lazy(parameter) or not parameter.is_floating_point() or parameter.itemsize < 2:
        return True  # without values yet, or of a quantized type, which is not trained
    wrong: Tensor = ~parameter.isfinite() if parameter.requires_grad else parameter.isnan()
    return not bool(wrong.any())  # a frozen mask may be infinite


def require_room_for_noise(
    private: PrivateGradients, mechanism: DpSgd, clip_factors: Sequence[float] | None
) -> None:
    """Raise if a threshold is too small to clip, or the noise of a step too large or small for its sums.

    Args:
        private: The gradients of the run.
        mechanism: The mechanism of the run.
        clip_factors: What the threshold of each step is multiplied by, if a schedule does so.

    Raises:
        InvalidParameterError: If there is such a step.
    """
    factors = sorted(set(clip_factors or ()))
    for factor in factors:
        Clipper(private.step.clipping, private.parameters).scaled(factor)
    for dtype in {norm_dtype(p) for p in private.parameters.values()}:
        for (noise_multiplier, _), factor in product(mechanism.noise, factors or [1.0]):
            require_size(noise_multiplier * factor * private.bound, dtype)
