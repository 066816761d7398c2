"""Measures Opacus on PyTorch: its documented training loop, with "hooks" or "ghost" clipping.

The comparison favours Opacus: its batches are slices of one tensor, so that neither a loader nor a
sampler is timed, and no metrics are computed.
"""

import gc

import protocol
import torch_models


def run(spec, start):
    import opacus
    import torch

    device = _choose(spec, torch)
    subject = spec["subject"]
    private = subject in ("opacus_hooks", "opacus_ghost")
    x, y = protocol.data(spec)
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2).copy()
    x, y = torch.from_numpy(x).to(device), torch.from_numpy(y).long().to(device)
    lot = spec["lot"]
    model = torch_models.build(spec["model"], private).to(device)
    model.train()
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=protocol.LEARNING_RATE)
    if private:
        # The engine takes only the sampling probability from the loader.
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=lot)
        mode = subject.removeprefix("opacus_")
        model, optimizer, *rest = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=criterion,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
            max_grad_norm=protocol.L2_NORM_CLIP,
            grad_sample_mode=mode,
            poisson_sampling=False,
        )
        if mode == "ghost":
            criterion = rest[0]
    mixed = protocol.precision(spec) == "mixed_bfloat16"
    clock = start()
    try:
        lots = protocol.lots(spec)
        for step in range(protocol.epochs(spec) * lots):
            first = step % lots * lot
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=mixed):
                loss = criterion(model(x[first : first + lot]), y[first : first + lot])
            loss.backward()
            optimizer.step()
            loss.item()
            clock.tick()
    except protocol.Enough:
        pass
    answer = {"versions": {"torch": torch.__version__, "opacus": opacus.__version__}}
    if protocol.on_gpu(spec):
        answer["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return answer


def _choose(spec, torch):
    """Chooses the precision, and forgets the previous point. Returns the name of the device."""
    gc.collect()
    if not protocol.on_gpu(spec):
        return "cpu"
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU")
    faster = protocol.precision(spec) == "tensor_float_32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = faster
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return "cuda"


if __name__ == "__main__":
    protocol.main(run)
