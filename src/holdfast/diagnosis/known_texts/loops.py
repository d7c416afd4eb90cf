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
        "Activation checkpointing got inputs without gradients, so the parameters inside get none.",
        "Use checkpoint(..., use_reentrant=False), or model.enable_input_require_grads().",
        WARNING,
    ),
    KnownText(
        "optimizer-without-parameters",
        ("optimizer got an empty parameter list",),
        "parameters-not-trained",
        "The optimizer got no parameters.",
        "Put layers in nn.ModuleList or nn.ModuleDict, not in a plain list or dict. Check the filter on requires_grad.",
    ),
    KnownText(
        "optimizer-of-a-result",
        ("can't optimize a non-leaf Tensor",),
        "parameters-not-trained",
        "The optimizer got the result of an operation, such as .to(device), not a parameter.",
        "Move the tensor first, then make it a parameter: nn.Parameter(x.to(device)).",
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
        "backward() ran again on a freed graph: a hidden state or a loss of an earlier step is still attached.",
        "Call detach() on what is carried from step to step (hidden states, running sums); sum losses and call backward once.",
    ),
    KnownText(
        "loss-is-no-number",
        ("grad can be implicitly created only for scalar outputs",),
        "graph-error",
        "backward() was called on a tensor with more than one value.",
        "Call loss.mean().backward(). nn.DataParallel returns one loss per GPU: take their mean.",
    ),
    KnownText(
        "numpy-of-a-graph",
        ("Can't call numpy() on Tensor that requires grad", "device type tensor to numpy. Use Tensor.cpu()"),
        "graph-error",
        "A tensor with a graph, or on the GPU, was turned into an array.",
        "Use x.detach().cpu().numpy(), only for values that are logged or plotted.",
    ),
    KnownText(
        "not-used-in-the-graph",
        ("appears to not have been used in the graph",),
        "graph-error",
        "A gradient was requested for a tensor that the result does not depend on.",
        "Pass allow_unused=True if that is intended; else find the line that drops the tensor.",
    ),
    KnownText(
        "recomputed-differently",
        (
            "A different number of tensors was saved during the original forward and recomputation",
            "Recomputed values for the following tensors have different metadata",
        ),
        "graph-error",
        "Under activation checkpointing the recomputed forward pass differs from the first.",
        "In that part use no global state and no random generator of your own; set use_cache=False while training.",
    ),
    KnownText(
        "scheduler-before-optimizer",
        ("Detected call of 'lr_scheduler.step()' before 'optimizer.step()'",),
        "loop-mistake",
        "scheduler.step() came before the first update, so the first learning rate was skipped. With a gradient scaler that"
        " skipped the first update the warning is harmless.",
        "Call optimizer.step() first, then scheduler.step().",
        WARNING,
    ),
    KnownText(
        "loss-broadcasts",
        ("Using a target size * that is different to the input size",),
        "not-learning",
        "Prediction and target differ in shape, such as [32, 1] and [32]: the loss compares every prediction with every target.",
        "Give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1). Until then the model learns only the mean.",
        WARNING,
    ),
    KnownText(
        "softmax-without-dimension",
        ("Implicit dimension choice for softmax", "Implicit dimension choice for log_softmax"),
        "not-learning",
        "softmax without dim guesses the dimension, and often guesses wrong.",
        "Pass it: softmax(x, dim=-1). cross_entropy takes logits and needs no softmax.",
        WARNING,
    ),
    KnownText(
        "metric-undefined",
        ("is ill-defined and being set to 0.0", "Only one class is present in y_true", "Only one class present in y_true"),
        "constant-predictions",
        "A metric cannot be computed: one class is never predicted, or only one is in the data.",
        "Count predictions and labels by class. If all predictions are the same, lower the learning rate, and check the"
        " labels and the class weights.",
        WARNING,
    ),
    KnownText(
        "metric-not-there",
        (
            "conditioned on metric * which is not available",
            "could not find the monitored key",
        ),
        "loop-mistake",
        "The trainer monitors a metric that is not logged under this name.",
        "Log it in validation under exactly this name; the message lists the metrics that exist.",
    ),
)
