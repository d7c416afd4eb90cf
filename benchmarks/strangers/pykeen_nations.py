"""PyKEEN's pipeline: embeddings of the relations between nations, a knowledge base that ships with it."""

from pykeen.pipeline import pipeline

PACKAGE = "pykeen"
HALF = "score"

result = pipeline(
    dataset="Nations",
    model="TransE",
    model_kwargs={"embedding_dim": 64},
    optimizer_kwargs={"lr": 5e-3},
    training_loop="sLCWA",
    training_kwargs={"num_epochs": 20, "batch_size": 32},
    stopper="early",
    stopper_kwargs={"frequency": 5, "patience": 4, "relative_delta": 0.002},
    random_seed=0,
    device="cpu",
)
print(f"hits@10 {result.get_metric('hits@10'):.4f}, final loss {result.losses[-1]:.4f} after {len(result.losses)} epochs")
