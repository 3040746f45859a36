#!/usr/bin/env python3
"""Quantizes models as people who serve them do, by ONNX Runtime's tools: the forms of bytes that exporters never write.

    tools/quantize_models.py --models FOLDER --out FOLDER [--only NAME,...] [--forms FORM,...]

FOLDER of --models has models.json as tools/export_models.py writes it; the other gets NAME_FORM.onnx and a models.json,
for tools/compare_models.py and ../shared/bench/peers.py. Forms: qdq_u8 (activations of unsigned bytes, weights by
channel), qdq_s8 (signed and around 0, as TensorRT wants them), qop (QLinear operators, weights of unsigned bytes),
dynamic (zero points that each run finds), dynamic_u8 (and weights of unsigned bytes), int4 (MatMulNBits, blocks of 32),
int4_bytes (whose other operand may be rounded to bytes) and fp16. What is there already stays. Needs the Python packages
onnx, onnxruntime and numpy (tried with onnxruntime 1.20). Exit status: 0 when all were quantized, else 1.
"""
import argparse
import functools
import json
import logging
import pathlib
import sys
import tempfile

import numpy
import onnx
from onnxruntime import quantization
from onnxruntime.quantization.matmul_4bits_quantizer import MatMul4BitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from model_folder import make_missing
from prove_models import made_input

SAMPLES = 3


class Samples(quantization.CalibrationDataReader):
    """Random inputs of the described shapes, the same in each process."""

    def __init__(self, inputs):
        random = numpy.random.default_rng(1)
        self.left = [{name: made_input(how, random) for name, how in inputs.items()} for _ in range(SAMPLES)]

    def get_next(self):
        return self.left.pop() if self.left else None


def calibrated(source, target, inputs, **how):
    with tempfile.TemporaryDirectory() as folder:
        prepared = pathlib.Path(folder) / "prepared.onnx"
        # Symbolic inference refuses graphs that ONNX's own understands.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(str(prepared), str(target), Samples(inputs), **how)


def qdq_u8(source, target, inputs):
    calibrated(source, target, inputs, quant_format=quantization.QuantFormat.QDQ, per_channel=True,
               activation_type=quantization.QuantType.QUInt8)


def qdq_s8(source, target, inputs):
    calibrated(source, target, inputs, quant_format=quantization.QuantFormat.QDQ, per_channel=True,
               activation_type=quantization.QuantType.QInt8, extra_options={"ActivationSymmetric": True})


def qop(source, target, inputs):
    calibrated(source, target, inputs, quant_format=quantization.QuantFormat.QOperator,
               activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QUInt8)


def dynamic(source, target, _):
    quantization.quantize_dynamic(str(source), str(target))


def dynamic_u8(source, target, _):
    quantization.quantize_dynamic(str(source), str(target), weight_type=quantization.QuantType.QUInt8)


def int4(source, target, _, accuracy_level=None):
    quantizer = MatMul4BitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True, accuracy_level=accuracy_level)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def int4_bytes(source, target, inputs):
    int4(source, target, inputs, accuracy_level=4)


def fp16(source, target, _):
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


FORMS = {form.__name__: form for form in (qdq_u8, qdq_s8, qop, dynamic, dynamic_u8, int4, int4_bytes, fp16)}


def quantize(folder, plain, form, path):
    FORMS[form](folder / plain["file"], path, plain["inputs"])
    return {**plain, "name": path.stem, "file": path.name, "sha256": f"{plain['sha256']} {form}",
            "kind": "fp16" if form == "fp16" else "int8"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--forms", default=",".join(FORMS))
    options = parser.parse_args()
    models = {entry["name"]: entry for entry in json.loads((options.models / "models.json").read_text())}
    wanted = options.only.split(",") if options.only else list(models)
    forms = options.forms.split(",")
    if unknown := [name for name in wanted if name not in models] + [form for form in forms if form not in FORMS]:
        parser.error(f"no such model or form: {', '.join(unknown)}")
    logging.disable(logging.WARNING)
    makers = {f"{name}_{form}": functools.partial(quantize, options.models, models[name], form)
              for name in wanted for form in forms}
    return make_missing(options.out, makers)


if __name__ == "__main__":
    sys.exit(main())
