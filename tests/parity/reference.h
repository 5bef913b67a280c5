#pragma once

// Python's side of a comparison: a script that computes something with Python's PyTorch and writes
// it to raw little-endian files, and functions that read them. Without Python's PyTorch there is
// nothing to compare with, and the test fails.

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace paceline::parity {

class Reference {
 public:
  // Runs `/usr/bin/python3 SCRIPT ARGUMENTS FOLDER` with its own folder, which is removed with the
  // object. `script` is in tests/parity.
  explicit Reference(const std::string& script, const std::string& arguments = "");
  ~Reference();
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // Why there is no reference, with the script's output; empty if there is one.
  const std::string& failure() const { return failure_; }
  std::filesystem::path file(const std::string& name) const { return folder_ / name; }

  // Throws unless the file has exactly these elements.
  at::Tensor tensor(const std::string& name, at::IntArrayRef sizes,
                    at::ScalarType type = at::kFloat) const;
  // All float64 numbers of NAME.f64.
  at::Tensor row(const std::string& name) const;

 private:
  const std::filesystem::path folder_;
  std::string failure_;
};

// All elements in one row, in order.
at::Tensor flat(const std::vector<at::Tensor>& tensors);
// The opposite: copies a row into the parameters of a module.
void set_weights(torch::nn::Module& module, const at::Tensor& row);

// Throws an error with `what` unless the loss differs from Python's by at most `tolerance`
// (relative). Returns the relative difference.
double require_same_loss(const std::string& what, double loss, double pythons, double tolerance);

}  // namespace paceline::parity
