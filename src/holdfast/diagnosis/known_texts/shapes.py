"""Texts of shapes, devices and types that do not match, and of indices out of range."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import WARNING, KnownText, Pattern

OF_SHAPES = (
    KnownText(
        "other-device",
        (
            "Expected all tensors to be on the same device",
            "Input type (torch.cuda.* and weight type (torch.FloatTensor) should be the same",
            "Input type (torch.FloatTensor) and weight type (torch.cuda",
            "Expected object of device type cuda but got device type cpu",
            "Expected object of backend CUDA but got backend CPU",
            "is on CPU, but expected it to be on GPU",
        ),
        "shape-mismatch",
        "Two tensors are on different devices: a batch, a target or a buffer was not moved.",
        "Move the whole batch: x.to(device). Put tensors that a module creates in register_buffer, so that model.to(device)"
        " moves them.",
    ),
    KnownText(
        "other-dtype",
        (
            "expected scalar type * but found",
            "expected mat1 and mat2 to have the same dtype",
            "expected m1 and m2 to have the same dtype",
            "mat1 and mat2 must have the same dtype",
            "Input type (*) and bias type (*) should be the same",
            "Input type (*) and weight type (*) should be the same",
            "Found dtype * but expected",
            "result type * can't be cast to the desired output type",
            "expected Tensor for argument #1 'indices' to have one of the following scalar types",
        ),
        "shape-mismatch",
        "Two tensors have different dtypes (float32, float16, float64, int64).",
        "Half and float: compute inside torch.autocast, or cast the input to the weight's dtype. Double: NumPy arrays are"
        " float64, use .float(). Class labels must be .long().",
    ),
    KnownText(
        "shapes-for-a-product",
        ("mat1 and mat2 shapes cannot be multiplied", "size mismatch, m1: [", "mat1 dim 1 must match mat2 dim 0"),
        "shape-mismatch",
        "A linear layer gets the wrong number of inputs.",
        "The layer's in_features must equal the last dimension of its input: print x.shape before it. After flatten it changes"
        " with the image size.",
    ),
    KnownText(
        "shapes-differ",
        (
            "The size of tensor a (*) must match the size of tensor b",
            "Sizes of tensors must match except in dimension",
            "output with shape * doesn't match the broadcast shape",
        ),
        "shape-mismatch",
        "Two tensors that are combined have different sizes.",
        "Print both shapes before the line. If they differ by one or two, pad the images to a multiple of 32.",
    ),
    KnownText(
        "channels-differ",
        ("expected input* to have * channels, but got",),
        "shape-mismatch",
        "A convolution gets the wrong number of channels: a grey or RGBA image, or channels that come last.",
        "image.convert('RGB'); permute(2, 0, 1) for arrays with channels last.",
    ),
    KnownText(
        "shape-invalid",
        ("is invalid for input of size",),
        "shape-mismatch",
        "A view or reshape asks for the wrong number of elements.",
        "Use x.size(0) and -1, not fixed numbers; the last batch of an epoch is smaller (drop_last=True).",
    ),
    KnownText(
        "batch-of-one",
        ("Expected more than 1 value per channel when training",),
        "shape-mismatch",
        "Batch normalisation cannot compute statistics of a single sample: usually the last batch of an epoch.",
        "DataLoader(..., drop_last=True), a batch of at least two per GPU, or group normalisation.",
    ),
    KnownText(
        "index-out-of-range",
        ("index out of range in self", "is out of bounds for dimension"),
        "token-out-of-range",
        "An embedding or tensor was indexed out of range.",
        "Compare ids.max() with the rows of the embedding. New tokens: model.resize_token_embeddings(len(tokenizer)). Long"
        " texts: truncate to the model's maximum length (positions are an embedding too).",
    ),
    KnownText(
        "label-out-of-range",
        (
            "IndexError: Target * is out of bounds",
            "Target * is out of bounds",
            "Class values must be smaller than num_classes",
            "Class values must be non-negative",
        ),
        "token-out-of-range",
        "A label is negative or not smaller than the number of classes.",
        "Labels must be 0 … classes − 1: count from 0, set num_classes, and ignore_index for ignored labels (-100, 255).",
    ),
    KnownText(
        "embedded-label-out-of-range",
        (
            Pattern(
                r"\b(?:class|cls|label)_?(?:embed|emb|embedding|embedder)s?\(",
                ("embed", "embeds", "emb", "embs", "embedding", "embeddings", "embedder"),
            ),
        ),
        "token-out-of-range",
        "A label is negative or not smaller than the number of classes: the embedding of the classes has no row for it.",
        "Labels must be 0 … classes − 1: count from 0, and set num_classes (num_labels) to the number of classes in the data.",
        is_frame=True,
        only_with="index-out-of-range",
    ),
    KnownText(
        "text-too-long",
        ("Token indices sequence length is longer than the specified maximum sequence length",),
        "token-out-of-range",
        "A text has more tokens than the model has positions; an index error follows when the model gets it.",
        "tokenizer(..., truncation=True, max_length=…), or split texts into windows.",
        WARNING,
    ),
    KnownText(
        "target-of-another-kind",
        (
            "multi-target not supported",
            "only batches of spatial targets supported",
            "Expected floating point type for target with class probabilities",
            "Using a target size * that is different to the input size * is deprecated. Please ensure",
            "Target size * must be the same as input size",
            "Expected target size",
            "Expected input batch_size * to match target batch_size",
        ),
        "shape-mismatch",
        "The target has the wrong format for this loss: class numbers, class probabilities, or a map of either.",
        "cross_entropy: targets of shape [batch] as .long(), or [batch, classes] as floats; for sequences move"
        " the classes of the logits to dim 1.",
    ),
)
