#pragma once
#include <string>

#include "lathe/tensor.h"

namespace lathe::tools {

// Tensors in files of the ecosystem: NumPy's .npy and .npz (format versions 1 to 3, C or Fortran order, little endian)
// and ONNX's TensorProto (.pb). Throws Error(io) or Error(invalid_argument) naming the file.
Tensor read_npy(const std::string& path);
void write_npy(const std::string& path, const Tensor& tensor);
// `member`: the array's name in the archive, with or without ".npy"; empty: its only one.
Tensor read_npz(const std::string& path, const std::string& member);
// By the file's ending.
Tensor read_tensor_file(const std::string& path, const std::string& npz_member);

}  // namespace lathe::tools
