"""pytorch-tabnet's loop: attentive feature selection on scikit-learn's digits, as a table."""

from pytorch_tabnet.tab_model import TabNetClassifier
from sklearn.datasets import load_digits

PACKAGE = "pytorch-tabnet"
HALF = "build"

images, labels = load_digits(return_X_y=True)
images = images / 16
classifier = TabNetClassifier(verbose=1, device_name="cpu")
classifier.fit(images[:1400], labels[:1400], eval_set=[(images[1400:], labels[1400:])], max_epochs=12, batch_size=128)
