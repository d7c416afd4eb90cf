"""Texts of mistakes in a loop: the graph, the order of calls, parameters without gradients."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import WARNING, KnownText

OF_LOOPS = (
    KnownText(
        "no-graph-to-the-loss",
        ("does not require grad and does not have a grad_fn",),
        "parameters-not-trained",
        "The loss does not depend on any trained parameter: all are frozen, or the graph was detached.",
        "Look for torch.no_grad(), .detach(), .item(), .data or argmax between model and loss, and for requires_grad = False"
        " everywhere. With LoRA and gradient checkpointing: model.enable_input_require_grads().",
    ),
    KnownText(
        "inputs-without-gradient",
        ("None of the inputs have requires_grad=True", "Gradients will be None"),
        "parameters-not-trained",
        "Activation checkpointing got inputs without gradients, and so gives none to the parameters inside.",
        "checkpoint(..., use_reentrant=False), or model.enable_input_require_grads().",
        WARNING,
    ),
    KnownText(
        "optimizer-without-parameters",
        ("optimizer got an empty parameter list",),
        "parameters-not-trained",
        "The optimizer was given nothing to train.",
        "Layers in a plain list or dict are not seen: use nn.ModuleList or nn.ModuleDict. Check the filter on requires_grad.",
    ),
    KnownText(
        "optimizer-of-a-result",
        ("can't optimize a non-leaf Tensor",),
        "parameters-not-trained",
        "The optimizer was given a computed tensor: .to(device) or an operation after requires_grad.",
        "Move first, then make it a parameter: nn.Parameter(x.to(device)).",
    ),
    KnownText(
        "changed-in-place",
        (
            "has been modified by an inplace operation",
            "modified by an in-place operation",
            "is being used in an in-place operation",
        ),
        "graph-error",
        "A tensor that the backward pass still needs was changed in place.",
        "Write x = x + y, not x += y; ReLU(inplace=False); no optimizer.step() between a forward and its backward."
        " torch.autograd.set_detect_anomaly(True) shows the forward line.",
    ),
    KnownText(
        "backward-twice",
        ("Trying to backward through the graph a second time",),
        "graph-error",
        "backward() was called again on a graph that is gone: a hidden state or a loss of an earlier step is still attached.",
        "detach() what is carried from step to step (hidden states, running sums); add losses first and call backward once.",
    ),
    KnownText(
        "loss-is-no-number",
        ("grad can be implicitly created only for scalar outputs",),
        "graph-error",
        "backward() was called on more than one number.",
        "loss.mean().backward(). Under nn.DataParallel the losses of all cards come back: take their mean.",
    ),
    KnownText(
        "numpy-of-a-graph",
        ("Can't call numpy() on Tensor that requires grad", "device type tensor to numpy. Use Tensor.cpu()"),
        "graph-error",
        "A tensor with a graph, or on the GPU, was turned into an array.",
        "x.detach().cpu().numpy(), for what is logged and plotted only.",
    ),
    KnownText(
        "not-used-in-the-graph",
        ("appears to not have been used in the graph",),
        "graph-error",
        "A gradient was requested for something the result does not depend on.",
        "allow_unused=True if that is intended; else look for the line that drops it.",
    ),
    KnownText(
        "recomputed-differently",
        (
            "A different number of tensors was saved during the original forward and recomputation",
            "Recomputed values for the following tensors have different metadata",
        ),
        "graph-error",
        "Under activation checkpointing the second forward did something else than the first.",
        "No branch on global state or on random numbers of its own inside; no cache (use_cache=False) while training.",
    ),
    KnownText(
        "scheduler-before-optimizer",
        ("Detected call of 'lr_scheduler.step()' before 'optimizer.step()'",),
        "loop-mistake",
        "The scheduler moved before the first update, so the first learning rate was skipped. With a gradient scaler: its"
        " first update was skipped, and the warning is harmless.",
        "optimizer.step() first, then scheduler.step().",
        WARNING,
    ),
    KnownText(
        "loss-broadcasts",
        ("Using a target size * that is different to the input size",),
        "not-learning",
        "Prediction and target have different shapes, such as [32, 1] and [32]: the loss compares every one with every other.",
        "Give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1). It trains towards the mean until then.",
        WARNING,
    ),
    KnownText(
        "softmax-without-dimension",
        ("Implicit dimension choice for softmax", "Implicit dimension choice for log_softmax"),
        "not-learning",
        "Softmax picks its dimension by a rule that is rarely the one intended.",
        "Name it: softmax(x, dim=-1). cross_entropy takes logits and needs none at all.",
        WARNING,
    ),
    KnownText(
        "metric-undefined",
        ("is ill-defined and being set to 0.0", "Only one class is present in y_true", "Only one class present in y_true"),
        "constant-predictions",
        "A metric cannot be computed: one class is never predicted, or only one is in the data.",
        "Count predictions and labels by class. All the same prediction: lower the learning rate, check the labels and their"
        " weights.",
        WARNING,
    ),
    KnownText(
        "metric-not-there",
        (
            "conditioned on metric * which is not available",
            "could not find the monitored key",
        ),
        "loop-mistake",
        "The trainer is told to watch a metric that nothing logs under this name.",
        "Log it in validation under that very name; the message lists those that exist.",
    ),
)
