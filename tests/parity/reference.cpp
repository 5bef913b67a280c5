#include "tests/parity/reference.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <stdlib.h>

#include <torch/torch.h>

#include "paceline/engine/core/check.h"

namespace paceline::parity {
namespace {

std::filesystem::path new_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "paceline-parity-XXXXXX").string();
  check(mkdtemp(name.data()) != nullptr, "cannot make the folder {}", name);
  return name;
}

}  // namespace

Reference::Reference(const std::string& script, const std::string& arguments)
    : folder_(new_folder()) {
  const auto output = file("output");
  const std::string command =
      fmt::format("PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 '{}/{}' {} '{}' > '{}' 2>&1",
                  PACELINE_PARITY_SCRIPTS, script, arguments, folder_.string(), output.string());
  if (std::system(command.c_str()) == 0) return;
  std::ostringstream text;
  text << script << " " << arguments << " failed:\n"
       << std::ifstream(output).rdbuf()
       << "\nDebian's package python3-torch brings PyTorch for /usr/bin/python3";
  failure_ = text.str();
}

Reference::~Reference() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

at::Tensor Reference::tensor(const std::string& name, at::IntArrayRef sizes,
                             at::ScalarType type) const {
  at::Tensor tensor = at::empty(sizes, type);
  std::ifstream in(file(name), std::ios::binary);
  in.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  check(in.good() && in.peek() == std::ifstream::traits_type::eof(),
        "{} is missing or not {} bytes long", file(name).string(), tensor.nbytes());
  return tensor;
}

at::Tensor Reference::row(const std::string& name) const {
  const auto bytes = std::filesystem::file_size(file(name + ".f64"));
  return tensor(name + ".f64", {static_cast<std::int64_t>(bytes / sizeof(double))}, at::kDouble);
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return at::cat(parts);
}

void set_weights(torch::nn::Module& module, const at::Tensor& row) {
  std::int64_t begin = 0;
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(row.narrow(0, begin, parameter.numel()).view_as(parameter));
    begin += parameter.numel();
  }
  check(begin == row.numel(), "{} weights are given, the module has {}", row.numel(), begin);
}

double require_same_loss(const std::string& what, double loss, double pythons, double tolerance) {
  const double difference = std::abs(loss - pythons) / std::abs(pythons);
  check(difference <= tolerance,
        "{}: the loss {:.9g} is not Python's {:.9g} (relative difference {:.1e})", what, loss,
        pythons, difference);
  return difference;
}

}  // namespace paceline::parity
