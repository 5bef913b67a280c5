#pragma once

// Python's side of a comparison: a script that computes something with Python's PyTorch and leaves
// it in raw little-endian files, and what reads them. Without Python's PyTorch there is nothing to
// compare with, and the test fails.

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace paceline::parity {

class Reference {
 public:
  // Runs `/usr/bin/python3 SCRIPT ARGUMENTS FOLDER` with a folder of its own, which goes away with
  // the object. `script`: of tests/parity.
  explicit Reference(const std::string& script, const std::string& arguments = "");
  ~Reference();
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // Why there is no reference, with what the script printed; empty: there is one.
  const std::string& failure() const { return failure_; }
  std::filesystem::path file(const std::string& name) const { return folder_ / name; }

  // Throws unless the file has these elements and nothing else.
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
// The other way round, into the parameters of a module.
void set_weights(torch::nn::Module& module, const at::Tensor& row);

// Throws, with `what`, unless the loss is Python's to `tolerance`, relative. Returns the relative
// difference.
double require_same_loss(const std::string& what, double loss, double pythons, double tolerance);

}  // namespace paceline::parity
