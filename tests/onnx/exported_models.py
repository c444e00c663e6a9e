#!/usr/bin/env python3
"""Models as today's exporters write them, run by onnx_run beside onnxruntime. Not run by ctest: it needs torch, onnx and onnxruntime.

    exported_models.py [--bin FOLDER] [--keep FOLDER] [--only REGEX] [--times N] [--no-times]
    exported_models.py --written [--bin FOLDER]

Each model of models() and layers() has random weights. torch.onnx.export writes it, with dynamo=True and (models of the old list) with dynamo=False;
skl2onnx writes the pipelines. Both programs then run it, twice with different sizes where a dimension is open. A line for each file:

  model        its name, and which exporter wrote it
  nodes        of the file
  difference   the largest one of any output, over the largest magnitude of that output; also of onnxruntime with what onnx_run --save-onnx
               wrote, which the checker must accept
  ms           the median of steps of onnxruntime and of onnx_run, both with one thread, at batch 1, in turns; and how many times longer onnx_run takes

--written: the ops, graphs and layers that runtime_tests draws and save_onnx() writes, all of them, beside onnxruntime.
--keep: the files stay there, and those that are there are not written again. Ends with 1 if a model is refused or a difference is above 1e-4 (of halves 2e-3).
"""

import argparse
import collections
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 1e-4

try:
    import numpy as np
    import onnx
    import onnxruntime
    import torch
    from torch import nn
    import torch.nn.functional as F
except ImportError as e:
    print(f"exported_models.py: skipped, there is no '{e.name}': python3 -m venv V; V/bin/pip install torch torchvision onnx onnxscript onnxruntime skl2onnx",
          file=sys.stderr)
    sys.exit(77)


class of(nn.Module):
    """A function as a module, with the modules that it uses."""

    def __init__(self, f, *modules):
        super().__init__()
        self.f, self.parts = f, nn.ModuleList(modules)

    def forward(self, *x):
        return self.f(*self.parts, *x)


class case:
    """`sizes`: of the open dimension, for each run; `axes`: which axis of each input is open (None: none). The first size is the one exported with."""

    def __init__(self, module, inputs, axes=None, sizes=(2, 3), exporters=("dynamo", "old"), opset=None):
        self.module, self.inputs, self.exporters, self.opset = module, inputs, exporters, opset
        self.axes = axes
        self.sizes = sizes if axes else (None,)

    def drawn(self, size):
        torch.manual_seed(7)
        return self.inputs(size) if self.axes else self.inputs()


def floats(*shape):
    return torch.randn(*shape)


def batch(module, *shape, **more):
    """One f32 input [batch, ..]."""
    return case(module, lambda n: (floats(n, *shape),), axes=(0,), **more)


def fixed(module, *shapes, **more):
    return case(module, lambda: tuple(floats(*s) for s in shapes), **more)


def apart(name, functions, inputs, axes=(0,), exporters=("dynamo", "old")):
    """A file for each function: an exporter that lacks one writes the others."""
    for number, f in enumerate(functions):
        yield f"{name}_{number}", case(of(f), inputs, axes=axes, exporters=exporters)


def layers():
    yield "conv_odd", batch(nn.Sequential(nn.Conv2d(6, 8, (3, 5), stride=(2, 1), dilation=(1, 2), padding=(2, 3), groups=2), nn.Conv2d(8, 5, 2, bias=False),
                                          nn.Conv2d(5, 10, 3, padding="same", groups=5), nn.Conv2d(10, 4, 3, padding=1, padding_mode="reflect"),
                                          nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")), 6, 17, 19)
    yield "conv_1d", batch(nn.Sequential(nn.Conv1d(4, 8, 5, stride=3, padding=2), nn.Conv1d(8, 8, 3, dilation=2, groups=8)), 4, 33)
    yield "conv_3d", batch(nn.Sequential(nn.Conv3d(2, 4, 3, stride=(1, 2, 1), padding=1), nn.BatchNorm3d(4), nn.MaxPool3d(2), nn.Conv3d(4, 3, 1)), 2, 6, 8, 7)
    yield "conv_3d_odd", batch(nn.Sequential(nn.Conv3d(4, 4, (2, 3, 1), dilation=(1, 2, 1), groups=2), nn.AvgPool3d(2, padding=1),
                                             nn.AdaptiveAvgPool3d(1)), 4, 6, 9, 7)
    yield "conv_transposed", batch(nn.Sequential(nn.ConvTranspose2d(6, 4, (3, 4), stride=(2, 3), padding=1, output_padding=(1, 2)),
                                                 nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), nn.ConvTranspose2d(6, 2, 2, stride=2)), 6, 7, 5)
    yield "conv_transposed_1d", batch(nn.ConvTranspose1d(4, 3, 5, stride=2, padding=1, output_padding=1), 4, 11)
    yield "conv_transposed_3d", batch(nn.ConvTranspose3d(2, 3, 3, stride=2, padding=1, output_padding=1), 2, 3, 4, 5)
    yield "pools", batch(of(lambda a, b, c, d, e, x: (a(x), b(x), c(x), d(x), e(x)), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
                            nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), nn.AvgPool2d((2, 3), ceil_mode=True),
                            nn.MaxPool2d((2, 3), dilation=2, stride=1), nn.LPPool2d(2, 3, 2)), 3, 14, 15)
    yield "pools_adaptive", batch(of(lambda a, b, c, d, x: (a(x), b(x), c(x), d(x)), nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1), nn.AdaptiveAvgPool2d((3, 5)),
                                     nn.AdaptiveAvgPool2d((None, 5))), 3, 12, 15)
    yield "pools_1d", batch(of(lambda a, b, x: (a(x), b(x)), nn.MaxPool1d(4, 3, 1, ceil_mode=True), nn.AvgPool1d(5, 2, 2)), 3, 20)
    yield "pool_indices", fixed(nn.MaxPool2d(2, return_indices=True), (2, 3, 8, 8))
    yield "norms", batch(nn.Sequential(nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True), nn.LayerNorm([8, 6, 6]), nn.LocalResponseNorm(3)),
                         8, 6, 6)
    yield "norms_of_rows", batch(nn.Sequential(nn.BatchNorm1d(8), nn.LayerNorm(8, bias=False), nn.RMSNorm(8), nn.LayerNorm(8, elementwise_affine=False)), 8)
    yield "norm_functions", batch(of(lambda x: (F.normalize(x, dim=1), F.normalize(x, p=1.0, dim=2), x.norm(dim=1), torch.linalg.vector_norm(x, 1, dim=2),
                                                x.std(1), x.var(2, unbiased=False), torch.var_mean(x, 1), F.instance_norm(x))), 5, 6)
    yield "activations", batch(of(lambda x: tuple(f(x) for f in (
        F.relu, F.relu6, F.elu, F.selu, F.celu, F.gelu, lambda y: F.gelu(y, approximate="tanh"), F.silu, F.mish, F.softplus, F.softsign, F.hardtanh,
        F.hardsigmoid, F.hardswish, F.leaky_relu, F.logsigmoid, F.tanhshrink, F.softshrink, F.hardshrink, torch.sigmoid, torch.tanh))), 4, 9)
    yield from apart("activations_more", [
        lambda x: F.threshold(x, 0.0, 0.0), lambda x: F.glu(x, 1), lambda x: (F.softmax(x, 1), F.log_softmax(x, -1), F.softmin(x, 2)), lambda x: F.softplus(x, 2.0, 3.0),
        lambda x: (torch.erf(x), torch.special.expit(x)), lambda x: F.rrelu(x)], lambda n: (floats(n, 4, 9),))
    yield "prelu", batch(nn.PReLU(4), 4, 9)
    for name, make in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        yield name, batch(of(lambda m, x: m(x)[0], make(5, 6, num_layers=2, bidirectional=True, batch_first=True)), 7, 5)
        yield f"{name}_states", case(of(lambda m, x, h: m(x, (h, h * 0.5) if isinstance(m, nn.LSTM) else h), make(5, 6, num_layers=2)),
                                     lambda: (floats(7, 3, 5), floats(2, 3, 6)))
    yield "lstm_sequence", case(of(lambda m, x: m(x)[0], nn.LSTM(5, 6, batch_first=True)), lambda n: (floats(2, n, 5),), axes=(1,), sizes=(5, 9))
    yield "lstm_projected", batch(of(lambda m, x: m(x)[0], nn.LSTM(5, 6, proj_size=3, batch_first=True)), 7, 5, exporters=("dynamo",))
    yield "lstm_cell", batch(of(lambda m, g, x: (*m(x), g(x)), nn.LSTMCell(5, 6), nn.GRUCell(5, 6)), 5)
    yield "multihead_attention", batch(of(lambda m, x: m(x, x, x)[0], nn.MultiheadAttention(16, 4, batch_first=True)), 7, 16)
    yield "multihead_masked", case(of(lambda m, q, k, p: m(q, k, k, key_padding_mask=p, average_attn_weights=False), nn.MultiheadAttention(16, 4, batch_first=True, kdim=8, vdim=8)),
                                   lambda n: (floats(n, 5, 16), floats(n, 6, 8), torch.arange(6).expand(n, 6) > 3), axes=(0, 0, 0))
    yield "attention", batch(of(lambda x: (F.scaled_dot_product_attention(x, x, x), F.scaled_dot_product_attention(x, x, x, is_causal=True),
                                           F.scaled_dot_product_attention(x, x, x, scale=0.3))), 4, 6, 8)
    yield "attention_masked", case(of(lambda q, k, b, m: (F.scaled_dot_product_attention(q, k, k, attn_mask=b), F.scaled_dot_product_attention(q, k, k, attn_mask=m))),
                                   lambda n: (floats(n, 4, 6, 8), floats(n, 4, 7, 8), torch.arange(7).expand(n, 1, 6, 7) < 5, floats(n, 4, 6, 7)), axes=(0, 0, 0, 0))
    yield "attention_grouped", batch(of(lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True)), 4, 6, 8, exporters=("dynamo",))
    yield "attention_opset_23", batch(of(lambda x: (F.scaled_dot_product_attention(x, x, x), F.scaled_dot_product_attention(x, x, x, is_causal=True))), 4, 6, 8,
                                      exporters=("dynamo",), opset=23)
    layer = dict(d_model=16, nhead=4, dim_feedforward=32, batch_first=True)
    yield "transformer_encoder", batch(nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer, activation="gelu"), 2, enable_nested_tensor=False), 6, 16)
    yield "transformer_encoder_pre", case(nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer, norm_first=True), 2, enable_nested_tensor=False),
                                          lambda n: (floats(2, n, 16),), axes=(1,), sizes=(5, 8))
    yield "transformer_decoder", case(of(lambda m, x, y: m(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(6)),
                                         nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2)), lambda n: (floats(n, 6, 16), floats(n, 5, 16)), axes=(0, 0))
    yield "embedding", case(nn.Embedding(20, 6, padding_idx=3), lambda n: (torch.randint(0, 20, (n, 5)),), axes=(0,))
    yield "embedding_bag", case(of(lambda s, m, x, o: (s(x, o), m(x, o)), nn.EmbeddingBag(20, 6, mode="sum"), nn.EmbeddingBag(20, 6, mode="mean")),
                                lambda: (torch.randint(0, 20, (12,)), torch.tensor([0, 3, 7])))
    yield "interpolate", batch(of(lambda x: tuple(F.interpolate(x, **k) for k in (
        dict(scale_factor=2, mode="nearest"), dict(size=(9, 11), mode="bilinear", align_corners=False), dict(size=(9, 11), mode="bilinear", align_corners=True),
        dict(scale_factor=1.5, mode="bicubic", align_corners=False), dict(size=(5, 4), mode="area"), dict(size=(9, 11), mode="bicubic", align_corners=True),
        dict(scale_factor=0.6, mode="bilinear", align_corners=False, recompute_scale_factor=True), dict(size=(7, 9), mode="nearest-exact")))), 3, 6, 8)
    yield "interpolate_antialias", batch(of(lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True)), 3, 16, 12)
    yield "interpolate_1d_3d", case(of(lambda x, y: (F.interpolate(x, scale_factor=2, mode="linear"), F.interpolate(x, size=7, mode="nearest"),
                                                     F.interpolate(y, scale_factor=2, mode="trilinear"), F.interpolate(y, size=(3, 5, 7), mode="nearest"))),
                                    lambda n: (floats(n, 3, 5), floats(n, 2, 3, 4, 5)), axes=(0, 0))
    yield "pads", batch(of(lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 2, 0, 3), value=0.5), F.pad(x, (2, 1, 1, 2), "reflect"), F.pad(x, (2, 1, 1, 2), "replicate"),
                                      F.pad(x, (2, 1, 1, 2), "circular"), F.pad(x, (-1, -1, 0, -2)), F.pad(x, (0, 0, 1, 1)))), 3, 6, 7)
    yield "einsum", case(of(lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij,bjk->b", a, b), torch.einsum("bii->bi", a),
                                          torch.einsum("bij->ji", a), torch.einsum("...ij,...jk->...ki", a, b))), lambda n: (floats(n, 4, 4), floats(n, 4, 5)), axes=(0, 0))
    yield "products", case(of(lambda a, b: (a @ b, torch.baddbmm(a, a, a, beta=0.5, alpha=2), torch.outer(a[0, 0], b[0, 0]), a[0] @ b[0, :, 0], torch.kron(a[0], b[0]),
                                            torch.tensordot(a, b, dims=([1], [1])))), lambda n: (floats(n, 4, 4), floats(n, 4, 5)), axes=(0, 0))
    yield from apart("sorts", [
        lambda x: torch.topk(x, 2, dim=1, largest=False), lambda x: torch.sort(x, descending=True), lambda x: torch.sort(x, 1), lambda x: torch.argsort(x, 1), lambda x: (x.argmax(1), x.argmin(2)),
        lambda x: x.max(1), lambda x: x.min(2), lambda x: x.median(1).values, lambda x: x.kthvalue(2, 1).values], lambda n: (floats(n, 6, 5),))
    yield "top_k", batch(of(lambda x: (*torch.topk(x, 3), *torch.topk(x, 2, dim=1, largest=False), *torch.sort(x, descending=True), x.argmax(1), *x.max(1))), 6, 5)
    yield from apart("gathers", [
        lambda x, i: torch.gather(x, 1, i), lambda x, i: x.index_select(1, i[0, :, 0]), lambda x, i: x[:, i[0, 0]], lambda x, i: torch.take_along_dim(x, i, 1), lambda x, i: x[:, [0, 2], [1, 3]],
        lambda x, i: x[..., 1:4:2], lambda x, i: x.flip(1), lambda x, i: x.roll(2, 1), lambda x, i: x.roll((1, 2), (1, 2)), lambda x, i: x[i[:, 0, 0], 1], lambda x, i: x[:, None, i[0, 0]]],
        lambda n: (floats(n, 6, 5), torch.randint(0, 2, (n, 3, 5))), axes=(0, 0))
    yield from apart("scatters", [
        lambda x, i, u: x.scatter(1, i, u), lambda x, i, u: x.scatter_add(1, i, u), lambda x, i, u: x.scatter_reduce(1, i, u, "amax"), lambda x, i, u: x.scatter_reduce(1, i, u, "sum"),
        lambda x, i, u: x.scatter(1, i, 0.5), lambda x, i, u: x.index_add(1, i[0, :, 0], u), lambda x, i, u: x.masked_fill(x > 0, -1.0), lambda x, i, u: x.index_copy(1, torch.tensor([4, 1, 0]), u),
        lambda x, i, u: x.slice_scatter(u, 1, 0, 3), lambda x, i, u: x.select_scatter(u[:, 0], 1, 2), lambda x, i, u: x.index_put((torch.tensor([0, 1]),), u[0, 0, 0]),
        lambda x, i, u: torch.where(x > 0, x, torch.zeros(()))],
        lambda n: (floats(n, 6, 5), torch.stack([torch.randperm(6)[:3] for _ in range(5)], 1).expand(n, 3, 5).contiguous(), floats(n, 3, 5)), axes=(0, 0, 0))
    yield "masks", batch(of(lambda x: (torch.where(x > 0, x, x * 0.1), x.masked_fill(x.isnan(), 0), torch.tril(x), torch.triu(x, 1), (x > 0) & (x < 1), (x != 0).any(1),
                                       (x > 0).all(2), x.clamp(-0.5, 0.5), x.clamp(min=0.1), torch.logical_xor(x > 0, x < 0.5), ~(x > 0), (x > 0).sum(1), x.isinf())), 5, 5)
    yield from apart("sums", [
        lambda x: (x.cumsum(1), x.cumsum(-1).flip(2)), lambda x: x.prod(1), lambda x: (x.mean((1, 2)), x.sum(), x.amax(1, keepdim=True)), lambda x: x.logsumexp(2), lambda x: x.abs().sum(1),
        lambda x: x.cumprod(1), lambda x: torch.logcumsumexp(x, 1), lambda x: x.diff(dim=1), lambda x: (x.std(), x.var((1, 2))), lambda x: x.norm(p=3, dim=1)], lambda n: (floats(n, 4, 5),))
    yield from apart("arithmetic", [
        lambda x: (x.exp(), (x.abs() + 1).log(), x.abs().sqrt(), (x.abs() + 0.1).rsqrt(), x.sin(), x.cos(), x.tan(), x.atan(), x.sinh(), x.cosh()),
        lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x.sign(), x.neg(), x.reciprocal()), lambda x: (x ** 2, x ** 3.0, 2 ** x), lambda x: torch.fmod(x, 0.7),
        lambda x: torch.remainder(x, 0.7), lambda x: x // 0.4, lambda x: torch.atan2(x, x.flip(1)), lambda x: torch.log1p(x.abs()), lambda x: torch.expm1(x),
        lambda x: torch.maximum(x, x.flip(1)), lambda x: torch.lerp(x, x.flip(1), 0.3), lambda x: torch.addcmul(x, x, x, value=0.5), lambda x: torch.hypot(x, x + 1), lambda x: x.asinh(),
        lambda x: torch.log2(x.abs() + 1), lambda x: torch.nan_to_num(x.log()), lambda x: torch.copysign(x, x.flip(1)), lambda x: torch.xlogy(x, x.abs() + 1)], lambda n: (floats(n, 4, 5),))
    yield from apart("whole_numbers", [
        lambda i: (i + 3, i // 3, i % 3, i * i), lambda i: i << 2, lambda i: i >> 1, lambda i: (i & 6, i | 9, i ^ 5), lambda i: i.float() / 2, lambda i: torch.div(i, 3, rounding_mode="trunc"),
        lambda i: (i.abs(), i.clamp(-2, 5), i.to(torch.int32) * 2), lambda i: i.sum(1), lambda i: i.max(1).values, lambda i: i.cumsum(1), lambda i: ~i, lambda i: (i == 3, i.bool()),
        lambda i: i.to(torch.uint8), lambda i: i.to(torch.int8) + 1, lambda i: i.to(torch.int16) * 3], lambda n: (torch.randint(-9, 30, (n, 6)),))
    yield "shapes", batch(of(lambda x: (x.view(x.shape[0], -1), x.permute(2, 0, 1), x.unsqueeze(1).expand(-1, 3, -1, -1), x.repeat(1, 2, 1), torch.cat([x, x * 2], 1), torch.stack([x, x], 1),
                                        *x.chunk(2, 1), *x.split([1, 3], 1), x.flatten(0, 1), x.unflatten(1, (2, 2)), x.transpose(1, 2).reshape(x.shape[0], 6, 4), torch.zeros_like(x) + 1,
                                        torch.arange(x.shape[0]), torch.ones(x.shape[0], 2), torch.linspace(0, 1, 5), x.new_full((x.shape[0],), 3.0), x.unfold(2, 3, 2),
                                        x.repeat_interleave(2, 1), torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")[0], torch.eye(4) @ x)), 4, 6)
    yield "grid_sample", case(of(lambda x, g: tuple(F.grid_sample(x, g, mode=m, padding_mode=p, align_corners=a) for m, p, a in (
        ("bilinear", "zeros", False), ("bilinear", "border", True), ("nearest", "zeros", False), ("bilinear", "reflection", False), ("bicubic", "zeros", False)))),
        lambda n: (floats(n, 3, 6, 7), torch.rand(n, 4, 5, 2) * 2.4 - 1.2), axes=(0, 0))
    yield "affine_grid", case(of(lambda x, t: F.grid_sample(x, F.affine_grid(t, [2, 3, 6, 7], align_corners=False), align_corners=False)), lambda: (floats(2, 3, 6, 7), floats(2, 2, 3)))
    yield "pixel_shuffle", batch(of(lambda a, b, c, x: (a(x), b(x), c(x)), nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ChannelShuffle(4)), 8, 4, 6)
    yield "fold", batch(of(lambda a, b, x: (a(x), b(a(x))), nn.Unfold(3, padding=1, stride=2), nn.Fold((8, 8), 3, padding=1, stride=2)), 3, 8, 8)
    yield from apart("distances", [
        lambda a, b: torch.cdist(a, b), lambda a, b: F.cosine_similarity(a, b, 2), lambda a, b: F.pairwise_distance(a[:, 0], b[:, 0]), lambda a, b: F.mse_loss(a, b),
        lambda a, b: F.smooth_l1_loss(a, b), lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean")], lambda n: (floats(n, 5, 6), floats(n, 5, 6)), axes=(0, 0))
    yield "losses", case(of(lambda x, t: (F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="none", ignore_index=1), F.nll_loss(x.log_softmax(1), t),
                                          F.binary_cross_entropy_with_logits(x[:, 0], t.float()), F.one_hot(t, 5))), lambda n: (floats(n, 5), torch.randint(0, 5, (n,))), axes=(0, 0))
    yield "bilinear", case(of(lambda m, a, b: m(a, b), nn.Bilinear(4, 5, 3)), lambda n: (floats(n, 4), floats(n, 5)), axes=(0, 0))
    yield "halves", batch(of(lambda m, x: m(x.half()).float(), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).half()), 6)
    yield "doubles", case(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), lambda n: (floats(n, 6).double(),), axes=(0,))
    yield "spectral_weights", batch(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))), 6, exporters=("dynamo",))
    yield "int8_ports", case(of(lambda i: (i.float() * 0.5, (i.float() + 1).to(torch.int8))), lambda n: (torch.randint(-9, 9, (n, 6), dtype=torch.int8),), axes=(0,))
    yield "nonzero", case(of(lambda x: torch.nonzero(x > 0)), lambda: (floats(3, 4),))
    yield "masked_select", case(of(lambda x: x[x > 0].sum()), lambda: (floats(3, 4),))


class residual(nn.Module):
    def __init__(self, channels, time):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.t = nn.Sequential(nn.SiLU(), nn.Linear(time, channels))
        self.b = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.q, self.o, self.norm = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels), nn.GroupNorm(4, channels)

    def forward(self, x, t):
        x = x + self.b(self.a(x) + self.t(t)[:, :, None, None])
        n, c, h, w = x.shape
        q, k, v = self.q(self.norm(x).flatten(2).transpose(1, 2)).view(n, h * w, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.o(y).transpose(1, 2).view(n, c, h, w)


class diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first, self.down, self.up, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, 2, 1), nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.a, self.b, self.c = residual(32, 64), residual(32, 64), residual(32, 64)

    def forward(self, x, t):
        f = torch.exp(-math.log(10000) * torch.arange(16) / 16)
        a = t[:, None].float() * f[None]
        e = self.time(torch.cat([a.cos(), a.sin()], -1))
        one = self.a(self.first(x), e)
        two = self.b(self.down(one), e)
        up = F.interpolate(two, scale_factor=2.0, mode="nearest")
        return self.last(self.c(self.up(torch.cat([up, one], 1)), e))


class unet(nn.Module):
    def __init__(self):
        super().__init__()

        def two(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
        self.a, self.b, self.c = two(3, 16), two(16, 32), two(32, 64)
        self.u2, self.u1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.d2, self.d1, self.out = two(64, 32), two(32, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        b = self.d2(torch.cat([self.u2(c), b], 1))
        return self.out(self.d1(torch.cat([self.u1(b), a], 1)))


class gpt_block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(self.n1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).contiguous().view(n, t, c))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class gpt(nn.Module):
    def __init__(self, words=97, width=64, depth=3):
        super().__init__()
        self.w, self.p = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks, self.n = nn.ModuleList([gpt_block(width, 4) for _ in range(depth)]), nn.LayerNorm(width)

    def forward(self, ids):
        x = self.w(ids) + self.p(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.n(x) @ self.w.weight.T


class llama_block(nn.Module):
    def __init__(self, width, heads, kv):
        super().__init__()
        self.heads, self.kv, self.e = heads, kv, width // heads
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, n, bias=False) for n in (width, kv * self.e, kv * self.e, width))
        self.gate, self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    @staticmethod
    def turned(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x, cos, sin, mask):
        n, t, c = x.shape
        y = self.n1(x)
        q = self.turned(self.q(y).view(n, t, self.heads, self.e).transpose(1, 2), cos, sin)
        k = self.turned(self.k(y).view(n, t, self.kv, self.e).transpose(1, 2), cos, sin)
        v = self.v(y).view(n, t, self.kv, self.e).transpose(1, 2)
        k, v = (p[:, :, None].expand(n, self.kv, self.heads // self.kv, t, self.e).reshape(n, self.heads, t, self.e) for p in (k, v))
        y = ((q @ k.transpose(2, 3)) / math.sqrt(self.e) + mask).softmax(-1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(n, t, c))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class llama(nn.Module):
    def __init__(self, words=97, width=64, depth=3):
        super().__init__()
        self.w, self.n, self.head = nn.Embedding(words, width), nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList([llama_block(width, 4, 2) for _ in range(depth)])
        self.register_buffer("f", 1 / 10000 ** (torch.arange(0, 16, 2) / 16))

    def forward(self, ids):
        t = ids.shape[1]
        at = torch.outer(torch.arange(t).float(), self.f)
        at = torch.cat([at, at], -1)
        mask = torch.full((t, t), float("-inf")).triu(1)
        x = self.w(ids)
        for b in self.blocks:
            x = b(x, at.cos(), at.sin(), mask)
        return self.head(self.n(x))


class bert(nn.Module):
    def __init__(self, words=97, width=64):
        super().__init__()
        self.w, self.p, self.s, self.n = nn.Embedding(words, width), nn.Embedding(64, width), nn.Embedding(2, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 128, batch_first=True, activation="gelu") for _ in range(2)])
        self.pool = nn.Linear(width, width)

    def forward(self, ids, mask, kinds):
        x = self.n(self.w(ids) + self.p(torch.arange(ids.shape[1]))[None] + self.s(kinds))
        for b in self.layers:
            x = b(x, src_key_padding_mask=mask == 0)
        return x, torch.tanh(self.pool(x[:, 0]))


def models():
    words = lambda n: torch.randint(0, 97, (n, 12))  # noqa: E731
    yield "unet", batch(unet(), 3, 32, 32)
    yield "diffusion_unet", case(diffusion(), lambda n: (floats(n, 3, 16, 16), torch.randint(0, 1000, (n,))), axes=(0, 0))
    yield "gpt2_like", case(gpt(), lambda n: (words(n),), axes=(0,))
    yield "gpt2_like_sequence", case(gpt(), lambda n: (torch.randint(0, 97, (2, n)),), axes=(1,), sizes=(9, 17))
    yield "llama_like", case(llama(), lambda n: (words(n),), axes=(0,))
    yield "llama_like_sequence", case(llama(), lambda n: (torch.randint(0, 97, (2, n)),), axes=(1,), sizes=(9, 17))
    yield "bert_like", case(bert(), lambda n: (words(n), (torch.arange(12) < 9).long().expand(n, 12).contiguous(), torch.zeros(n, 12, dtype=torch.long)), axes=(0, 0, 0))
    yield "perceptron", batch(nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10), nn.Softmax(1)), 3, 4, 4)
    try:
        import torchvision.models as tv
    except ImportError:
        print("  (no torchvision: its nets are left out)")
        return
    for name, make, side, exporters in (
            ("resnet18", lambda: tv.resnet18(), 64, ("dynamo", "old")), ("resnet50", lambda: tv.resnet50(), 64, ("dynamo", "old")),
            ("mobilenet_v2", lambda: tv.mobilenet_v2(), 64, ("old",)), ("mobilenet_v3", lambda: tv.mobilenet_v3_small(), 64, ("dynamo", "old")),
            ("efficientnet_b0", lambda: tv.efficientnet_b0(), 64, ("dynamo", "old")), ("squeezenet", lambda: tv.squeezenet1_1(), 64, ("dynamo", "old")),
            ("vit", lambda: tv.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=10), 32, ("dynamo", "old")), ("convnext_tiny", lambda: tv.convnext_tiny(), 64, ("dynamo",)),
            ("swin_t", lambda: tv.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10), 32, ("dynamo", "old")),
            ("swin_v2", lambda: tv.swin_transformer.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10, block=tv.swin_transformer.SwinTransformerBlockV2,
                                                                    downsample_layer=tv.swin_transformer.PatchMergingV2), 32, ("dynamo",)),
            ("densenet121", lambda: tv.densenet121(), 64, ("dynamo",)), ("shufflenet", lambda: tv.shufflenet_v2_x0_5(), 64, ("dynamo", "old")),
            ("googlenet", lambda: tv.googlenet(init_weights=False, aux_logits=False), 64, ("dynamo",)), ("mnasnet", lambda: tv.mnasnet0_5(), 64, ("dynamo",)),
            ("regnet", lambda: tv.regnet_y_400mf(), 64, ("dynamo",)), ("vgg11", lambda: tv.vgg11(num_classes=10), 32, ("old",)),
            ("deeplab", lambda: tv.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None), 64, ("dynamo",)),
            ("r3d", lambda: tv.video.r3d_18(), 0, ("dynamo",))):
        def inputs(n, side=side):
            return (floats(n, 3, side, side) if side else floats(n, 3, 4, 32, 32),)
        yield name, (make, inputs, exporters)


def pipelines():
    """What scikit-learn has and the standard's own domain can say."""
    try:
        from skl2onnx import to_onnx
        from sklearn.decomposition import PCA
        from sklearn.linear_model import LinearRegression, LogisticRegression
        from sklearn.neural_network import MLPClassifier, MLPRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import MinMaxScaler, StandardScaler
    except ImportError as e:
        print(f"  (no {e.name}: pipelines of scikit-learn are left out)")
        return
    r = np.random.default_rng(1)
    x = r.normal(size=(80, 6)).astype(np.float32)
    y, c = (x @ r.normal(size=(6, 2))).astype(np.float32), (x[:, 0] + x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1)
    for name, m, t in (("sk_pca", make_pipeline(PCA(3)), None), ("sk_mlp_regressor", MLPRegressor(hidden_layer_sizes=(8,), max_iter=30), y), ("sk_minmax", make_pipeline(MinMaxScaler()), None),
                       ("sk_scaler_pca", make_pipeline(StandardScaler(), PCA(3)), None), ("sk_linear", LinearRegression(), y),
                       ("sk_logistic", make_pipeline(StandardScaler(), PCA(4), LogisticRegression()), c), ("sk_mlp", make_pipeline(StandardScaler(), MLPClassifier(hidden_layer_sizes=(8,), max_iter=30)), c)):
        m.fit(x, t)
        options = {id(m): {"zipmap": False}} if hasattr(m, "predict_proba") else None
        try:
            yield name, to_onnx(m, x[:1], options=options, target_opset=18), x
        except Exception as e:  # noqa: BLE001
            print(f"  {name}: skl2onnx writes no file: {str(e).splitlines()[0][:150]}")


# --- export and runs ---

def export(c, exporter, path):
    c.module.eval()
    args = c.drawn(c.sizes[0])
    names = [f"x{i}" for i in range(len(args))]
    opset = {"opset_version": c.opset} if c.opset else {}
    if exporter == "dynamo":
        dynamic = None
        if c.axes:
            dim = torch.export.Dim.DYNAMIC
            dynamic = {"x": tuple({a: dim} if a is not None else None for a in c.axes)} if isinstance(c.module, of) else tuple({a: dim} for a in c.axes)
        torch.onnx.export(c.module, args, path, dynamo=True, input_names=names, dynamic_shapes=dynamic, verbose=False, **opset)
    else:
        dynamic = {n: {a: "N"} for n, a in zip(names, c.axes) if a is not None} if c.axes else None
        torch.onnx.export(c.module, args, path, dynamo=False, input_names=names, dynamic_axes=dynamic, **opset)


def reason(e):
    """The innermost error of an exporter, one line."""
    while e.__cause__ is not None or e.__context__ is not None:
        e = e.__cause__ or e.__context__
    lines = [line for line in str(e).splitlines() if line.strip()]
    return (lines or [type(e).__name__])[0][:150]


@contextlib.contextmanager
def silence():
    """Exporters print whole graphs."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            for to, k in enumerate(kept, 1):
                os.dup2(k, to)
                os.close(k)


def difference(ours, theirs):
    if theirs.dtype in (np.int8, np.int16, np.uint16) and ours.dtype == np.int32:  # whole numbers of few bits are i32 here
        ours = ours.astype(theirs.dtype)
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, expected {theirs.shape}"
    if ours.dtype != theirs.dtype:
        return f"type {ours.dtype}, expected {theirs.dtype}"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not np.isfinite(b[~same]).all() or not np.isfinite(a[~same]).all():
        return "not finite where the other is"
    scale = np.abs(b[np.isfinite(b)]).max()
    return float(np.abs(a - b)[~same].max() / max(scale, 1e-30))


class runner:
    def __init__(self, bin_folder, folder):
        self.program, self.folder = os.path.join(bin_folder, "onnx_run"), folder

    def ours(self, path, feeds, repeat=0, saved=None):
        out = os.path.join(self.folder, "out")
        os.makedirs(out, exist_ok=True)
        command = [self.program, path, "--output", out, "--json", *(["--repeat", str(repeat)] if repeat else []), *(["--save-onnx", saved] if saved else [])]
        for i, (name, a) in enumerate(feeds.items()):
            file = os.path.join(self.folder, f"in{i}.npy")
            np.save(file, a.astype(np.int32) if a.dtype in (np.int8, np.int16, np.uint16) else a)
            command += ["--input", f"{name}={file}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            return None, done.stderr.strip().replace(path, "FILE").splitlines()[-1:] or [f"ended with {done.returncode}"], None
        told = json.loads(done.stdout)
        return [np.load(o["file"]) for o in told["outputs"]], None, told.get("step_ms")

    def again(self, path, feeds, theirs):
        """What onnx_run --save-onnx makes of the model, run by onnxruntime: the largest difference, or a text."""
        saved = os.path.join(self.folder, "saved.onnx")
        _, failure, _ = self.ours(path, feeds, saved=saved)
        if failure:
            return "not written again: " + " ".join(failure)
        try:
            onnx.checker.check_model(onnx.load(saved), full_check=True)
            session = session_of(saved)
            known = {i.name for i in session.get_inputs()}
            got = session.run(None, {k: a.astype(np.int32) if a.dtype == np.int8 else a for k, a in feeds.items() if k in known})
        except Exception as e:  # noqa: BLE001
            return f"what was written again: {str(e).strip().splitlines()[0][:150]}"
        worst = 0.0
        for a, b in zip(got, theirs):
            d = difference(a, np.asarray(b))
            if isinstance(d, str):
                return f"what was written again: {d}"
            worst = max(worst, d)
        return worst


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(r, path, feeds_of, times):
    """-> (nodes, largest difference or a text, (ms of theirs, ms of ours) or None)"""
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    session = session_of(path)
    worst, took = 0.0, None
    for given in feeds_of:
        feeds = {i.name: a for i, a in zip(session.get_inputs(), given)}
        theirs = session.run(None, feeds)
        ours, failure, _ = r.ours(path, feeds)
        if failure:
            return nodes, "refused: " + " ".join(failure), None
        if feeds_of[0] is given:
            back = r.again(path, feeds, theirs)
            if isinstance(back, str):
                return nodes, back, None
            worst = max(worst, back)
        for o, a, b in zip(session.get_outputs(), ours, theirs):
            d = difference(a, np.asarray(b))
            if isinstance(d, str):
                return nodes, f"output '{o.name}': {d}", None
            if d > LIMIT and worst < d:
                print(f"    output '{o.name}' {b.dtype}{list(b.shape)} differs by {d:.2g}")
            worst = max(worst, d)
    if times:
        mine, other = [], []
        for _ in range(3):
            for _ in range(times):
                begin = time.perf_counter()
                session.run(None, feeds)
                other.append(1000 * (time.perf_counter() - begin))
            mine += r.ours(path, feeds, times)[2] or []
        took = (float(np.median(other)), float(np.median(mine))) if mine else None
    return nodes, worst, took


def tensors_in(folder, kind):
    all_of = []
    while os.path.exists(path := os.path.join(folder, "test_data_set_0", f"{kind}_{len(all_of)}.pb")):
        all_of.append(onnx.load_tensor(path))
    return all_of


def check_written(bin_folder):
    """Cases of the suite onnx_export. What onnxruntime has no kernel for (f64 of some ops, bf16, sizes of 0) is counted."""
    bad, ran, lacking = [], 0, collections.Counter()
    onnxruntime.set_default_logger_severity(4)
    with tempfile.TemporaryDirectory() as root:
        done = subprocess.run([os.path.join(bin_folder, "runtime_tests"), "--run_test=onnx_export"], env=os.environ | {"TROUPE_WRITE_ONNX": root}, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
        for name in sorted(os.listdir(root)):
            folder = os.path.join(root, name)
            model = onnx.load(os.path.join(folder, "model.onnx"))
            try:
                onnx.checker.check_model(model, full_check=True)
            except Exception as e:  # noqa: BLE001
                bad.append(f"{name}: {str(e).strip().splitlines()[-1][:200]}")
                continue
            feeds, wanted = tensors_in(folder, "input"), [onnx.numpy_helper.to_array(t) for t in tensors_in(folder, "output")]
            kind = " ".join(name.rsplit("_", 2)[:2])
            if any(p.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for p in [*model.graph.input, *model.graph.output]):
                lacking[kind] += 1  # no arrays of NumPy's
                continue
            try:
                got = session_of(os.path.join(folder, "model.onnx")).run(None, {i.name: onnx.numpy_helper.to_array(t) for i, t in zip(model.graph.input, feeds)})
            except Exception as e:  # noqa: BLE001
                if "NOT_IMPLEMENTED" not in str(e) and not any(0 in t.dims for t in feeds):
                    bad.append(f"{name}: {str(e).strip().splitlines()[0][:200]}")
                lacking[kind] += 1
                continue
            ran += 1
            for a, b in zip(got, wanted):
                d = difference(a, b)
                nothing = name.startswith("reduce_m") and any(0 in t.dims for t in feeds)  # of whole numbers the least one
                if not nothing and (isinstance(d, str) or d > (2e-3 if b.dtype == np.float16 else LIMIT)):
                    bad.append(f"{name}: {d}")
    print(f"{ran} written models are equal in onnxruntime, but for {len(bad)}; it does not run {sum(lacking.values())} others: {', '.join(sorted(lacking))}")
    for text in bad:
        print("  " + text)
    return 1 if bad or ran == 0 else 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    p.add_argument("--keep")
    p.add_argument("--only", default="")
    p.add_argument("--times", type=int, default=20)
    p.add_argument("--no-times", action="store_true")
    p.add_argument("--written", action="store_true")
    o = p.parse_args()
    if o.written:
        return check_written(o.bin)
    warnings.filterwarnings("ignore")
    import logging
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    times = 0 if o.no_times else o.times
    print(f"torch {torch.__version__}, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}")
    print(f"{'model':32} {'nodes':>5} {'difference':>10} {'ms theirs':>9} {'ms ours':>9} {'ratio':>6}")
    bad, count, not_written = [], 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = o.keep or temporary
        os.makedirs(folder, exist_ok=True)
        r = runner(o.bin, temporary)

        def line(name, path, feeds):
            nonlocal count
            count += 1
            try:
                nodes, worst, took = check(r, path, feeds, times)
            except Exception as e:  # noqa: BLE001
                print(f"{name:32} onnxruntime refuses the file: {str(e).splitlines()[0][:200]}", flush=True)
                return
            text = worst if isinstance(worst, str) else f"{worst:10.1e}"
            if isinstance(worst, str) or worst > (20 * LIMIT if name.startswith("halves") else LIMIT):
                bad.append(name)
            print(f"{name:32} {nodes:5} {text}" + (f" {took[0]:9.3f} {took[1]:9.3f} {took[1] / took[0]:6.2f}" if took else ""), flush=True)

        for kind, listed in (("net", models()), ("layer", layers())):
            for name, c in listed:
                if not re.search(o.only, f"{kind} {name}"):
                    continue
                if isinstance(c, tuple):
                    torch.manual_seed(5)
                    c = case(c[0](), c[1], axes=(0,), exporters=c[2])
                with torch.no_grad():  # averages of norms that are not 0 and 1
                    torch.manual_seed(5)
                    for m in c.module.modules():
                        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
                            m.running_mean.normal_(0, 0.1)
                            m.running_var.uniform_(0.8, 1.2)
                        if isinstance(m, nn.Linear) and not m.weight.any():  # a head that has learnt nothing
                            m.weight.normal_(0, 0.1)
                for exporter in c.exporters:
                    path = os.path.join(folder, f"{name}.{exporter}.onnx")
                    if not os.path.exists(path):
                        try:
                            with silence():
                                export(c, exporter, path)
                        except Exception as e:  # noqa: BLE001
                            not_written += 1
                            print(f"{name + ' ' + exporter:32} the exporter writes no file: {reason(e)}", flush=True)
                            continue
                    sizes = [*c.sizes, 1] if c.axes and c.axes[0] == 0 else c.sizes
                    line(f"{name} {exporter}", path, [[t.numpy() for t in c.drawn(n)] for n in sizes])
        if re.search(o.only, "pipeline sk_"):
            for name, model, x in pipelines():
                path = os.path.join(folder, f"{name}.onnx")
                onnx.save(model, path)
                line(name, path, [[x[:n]] for n in (5, 1)])
    print(f"{count} files, {count - len(bad)} equal, {not_written} not written" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
