"""PyTorch Geometric's mini-batches: scikit-learn's digits as graphs of neighbouring bright pixels, classified by a GNN."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GraphConv, global_mean_pool
from torch_geometric.utils import from_scipy_sparse_matrix

PACKAGE = "torch_geometric"
HALF = "build"


class GNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(3, 48), GraphConv(48, 48)
        self.lin = torch.nn.Linear(48, 10)

    def forward(self, data: Data) -> torch.Tensor:
        x = self.conv1(data.x, data.edge_index).relu()
        x = self.conv2(x, data.edge_index).relu()
        return self.lin(F.dropout(global_mean_pool(x, data.batch), p=0.2, training=self.training))


def graph(image: torch.Tensor, label: int) -> Data:
    pixels = (image > 3).nonzero()
    edges, _ = from_scipy_sparse_matrix(kneighbors_graph(pixels.numpy(), 6))
    return Data(x=torch.cat([pixels / 8, image[pixels[:, 0], pixels[:, 1], None] / 16], 1), edge_index=edges, y=label)


seed_everything(0)
digits = load_digits()
graphs = [graph(torch.tensor(image).float(), int(label)) for image, label in zip(digits.images, digits.target, strict=True)]
train_loader, test_loader = DataLoader(graphs[:1400], batch_size=32, shuffle=True), DataLoader(graphs[1400:], batch_size=128)
model = GNN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
for epoch in range(1, 16):
    model.train()
    for data in train_loader:
        loss = F.cross_entropy(model(data), data.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        correct = sum(int((model(data).argmax(dim=1) == data.y).sum()) for data in test_loader)
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test Acc: {correct / len(test_loader.dataset):.4f}", flush=True)
