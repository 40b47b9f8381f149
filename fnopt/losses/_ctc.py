"""Connectionist temporal classification (CTC)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import floats, log_softmax, take_at_label


class _Frames(NamedTuple):
    """Inputs of the recurrence at every time step, with time as the first axis."""

    emit: jax.Array  # [T, B, N] log-probability of every label
    blank: jax.Array  # [T, B, 1] log-probability of the blank
    padded: jax.Array  # [T, B, 1] bools


def _check_inputs(
    logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    (logits,) = floats("ctc_loss", logits=logits)
    labels, label_paddings = jnp.asarray(labels), jnp.asarray(label_paddings)
    logit_paddings = jnp.asarray(logit_paddings)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"ctc_loss: labels are {labels.dtype}, expected integers.")
    batch = logits.shape[:1]
    if (
        logits.ndim != 3
        or labels.ndim != 2
        or labels.shape[:1] != batch
        or label_paddings.shape != labels.shape
        or logit_paddings.shape != logits.shape[:2]
    ):
        raise ValueError(
            f"ctc_loss: got logits of shape {logits.shape}, logit_paddings {logit_paddings.shape}, "
            f"labels {labels.shape}, label_paddings {label_paddings.shape}; expected [B, T, K], "
            "[B, T], [B, N] and [B, N]."
        )
    return logits, logit_paddings != 0, labels, label_paddings != 0


def _frames(logits: jax.Array, padded: jax.Array, labels: jax.Array, blank_id: int) -> _Frames:
    # Padding frames may contain NaN. Zeros replace them, because `where` in the recurrence doesn't
    # keep NaN out of the derivative.
    log_p = log_softmax(jnp.where(padded[..., None], jnp.zeros_like(logits), logits))
    frame_labels = jnp.broadcast_to(labels[:, None], (*logits.shape[:2], labels.shape[1]))
    # Indexing, because an accelerator would round a product with one-hot rows to 16 bits.
    emit = jnp.take_along_axis(log_p, jnp.clip(frame_labels, 0, logits.shape[2] - 1), axis=2)
    return _Frames(
        emit.transpose(1, 0, 2),
        log_p[:, :, blank_id][..., None].transpose(1, 0, 2),
        padded[..., None].transpose(1, 0, 2),
    )


def _scores_after_labels(blank: jax.Array, emit: jax.Array) -> jax.Array:
    """Scores of the first `n` labels, `[B, N + 1]`, over alignments that end in blank or label."""
    return jnp.concatenate([blank[:, :1], jnp.logaddexp(blank[:, 1:], emit)], axis=1)


def ctc_loss_with_forward_probs(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: Any = -1e5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""CTC loss and its forward variables.

    .. math::
        \alpha^\epsilon_t(n) &= \left( \alpha^\epsilon_{t-1}(n) + \alpha^\ell_{t-1}(n) \right)
            p_t(\epsilon), \\
        \alpha^\ell_t(n) &= \left( \alpha^\ell_{t-1}(n) + \alpha^\epsilon_{t-1}(n-1)
            + [y_n \ne y_{n-1}]\, \alpha^\ell_{t-1}(n-1) \right) p_t(y_n)

    Args:
        logits: Scores, floating `[B, T, K]`.
        logit_paddings: `[B, T]`; nonzero for padding frames, whose logits are ignored.
        labels: Integers `[B, N]`.
        label_paddings: `[B, N]`; nonzero for padding labels. Padding is at the end.
        blank_id: The class :math:`\epsilon` of the blank.
        log_epsilon: The value that replaces the logarithm of 0. The loss of a sequence that can't
            be aligned (more labels than frames) is about `-log_epsilon`.

    Returns:
        The losses `[B]`; :math:`\log \alpha^\epsilon`, `[T, B, N + 1]`, whose last frame contains
        :math:`\log(\alpha^\epsilon + \alpha^\ell)`; :math:`\log \alpha^\ell`, `[T, B, N]`. All at
        least float32.

    Raises:
        TypeError: If the logits aren't floating or the labels aren't integers.
        ValueError: If the shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import ctc_loss_with_forward_probs
        >>> logits, labels = jnp.zeros((1, 2, 3)), jnp.asarray([[1]])
        >>> loss, blank, emit = ctc_loss_with_forward_probs(
        ...     logits, jnp.zeros((1, 2)), labels, jnp.zeros((1, 1)))
        >>> loss.shape, blank.shape, emit.shape
        ((1,), (2, 1, 2), (2, 1, 1))

    Reference:
        Graves et al., 2006, ICML, doi:10.1145/1143844.1143891.
    """
    scores, padded, labels, no_label = _check_inputs(logits, logit_paddings, labels, label_paddings)
    # A large negative number replaces log 0, because the derivative of logaddexp at two infinities
    # is NaN.
    zero = jnp.asarray(log_epsilon, scores.dtype)
    batch, size = labels.shape
    is_repeated = jnp.pad(labels[:, :-1] == labels[:, 1:], ((0, 0), (0, 1)))
    through_blank = jnp.where(is_repeated, zero, 0).astype(scores.dtype)
    without_blank = jnp.where(is_repeated, 0, zero).astype(scores.dtype)

    def step(carry: Any, frame: _Frames) -> Any:
        blank, emit = carry
        # Two equal consecutive labels need a blank in between.
        after_labels = _scores_after_labels(blank, emit + through_blank)
        next_emit = jnp.logaddexp(after_labels[:, :-1], emit) + frame.emit
        next_blank = _scores_after_labels(
            after_labels + frame.blank, emit + frame.blank + without_blank
        )
        next_carry = (
            jnp.where(frame.padded, blank, next_blank),
            jnp.where(frame.padded, emit, next_emit),
        )
        return next_carry, next_carry

    initial = jnp.full((batch, size + 1), zero).at[:, 0].set(0), jnp.full((batch, size), zero)
    _, (blank, emit) = jax.lax.scan(step, initial, _frames(scores, padded, labels, blank_id))
    final = _scores_after_labels(blank[-1], emit[-1])
    length = size - jnp.sum(no_label.astype(jnp.int32), axis=1)
    return -take_at_label(final, length), blank.at[-1].set(final), emit


def ctc_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: Any = -1e5,
) -> jax.Array:
    r"""Connectionist temporal classification (CTC) loss, for label sequences without alignment.

    .. math:: \ell(x, y) = -\log \sum_{\pi:\, \mathcal B(\pi) = y} \prod_t p_t(\pi_t)

    where :math:`\mathcal B` merges repeated classes and removes blanks.

    Args:
        logits: Scores, floating `[B, T, K]`.
        logit_paddings: `[B, T]`; nonzero for padding frames, whose logits are ignored.
        labels: Integers `[B, N]`.
        label_paddings: `[B, N]`; nonzero for padding labels. Padding is at the end.
        blank_id: The class of the blank.
        log_epsilon: The value that replaces the logarithm of 0. The loss of a sequence that can't
            be aligned (more labels than frames) is about `-log_epsilon`.

    Returns:
        The losses `[B]`, one per sequence; at least float32.

    Raises:
        TypeError: If the logits aren't floating or the labels aren't integers.
        ValueError: If the shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import ctc_loss
        >>> logits, labels = jnp.zeros((1, 2, 3)), jnp.asarray([[1]])
        >>> loss = ctc_loss(logits, jnp.zeros((1, 2)), labels, jnp.zeros((1, 1)))
        >>> round(9 * float(jnp.exp(-loss[0])), 3)  # 11, 01 and 10, of nine paths
        3.0

    Reference:
        Graves et al., 2006, ICML, doi:10.1145/1143844.1143891.
    """
    losses, _, _ = ctc_loss_with_forward_probs(
        logits, logit_paddings, labels, label_paddings, blank_id=blank_id, log_epsilon=log_epsilon
    )
    return losses
