"""Linear regression with numpy alone: no PyTorch anywhere.

    python3 -m ballast.run --workers 2 numpy_only.py
"""

import numpy as np

import ballast

FEATURES = 16


def main() -> None:
    truth = np.random.default_rng(0).standard_normal(FEATURES, np.float32)
    start = {"w": np.zeros(FEATURES, np.float32),
             "b": np.zeros((), np.float32)}
    with ballast.Session(tensors=start, resume="auto",
                         optimizer={"name": "adamw", "lr": 0.05},
                         param_groups=[{"match": "b", "weight_decay": 0.0}],
                         gradient_clipping=1.0) as s:
        for step in s.steps(200):
            random = np.random.default_rng([step, s.rank])
            x = random.standard_normal((64, FEATURES), np.float32)
            error = x @ s.params["w"] + s.params["b"] - (x @ truth + 0.5)
            s.grads["w"][...] = x.T @ error / len(x)
            s.grads["b"][...] = error.mean()
            result = s.step()
            if s.rank == 0 and step % 50 == 0:
                print("step %d: loss %.5f, gradient norm %.4f"
                      % (step, (error**2).mean() / 2, result.grad_norm),
                      flush=True)
        print("rank %d: b = %.3f, largest error of w %.3f"
              % (s.rank, s.params["b"],
                 np.abs(s.params["w"] - truth).max()), flush=True)


if __name__ == "__main__":
    main()
