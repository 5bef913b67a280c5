#include "paceline/train/weights_file.h"

#include <cstring>
#include <limits>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/checkpoint/plain_file.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/secret.h"
#include "paceline/tensor/tensor_view.h"

namespace paceline {

TensorsByName weights_of(const torch::nn::Module& module) {
  TensorsByName tensors;
  for (const auto& parameter : module.named_parameters())
    tensors.emplace(parameter.key(), parameter.value().detach());
  for (const auto& buffer : module.named_buffers())
    tensors.emplace(buffer.key(), buffer.value().detach());
  return tensors;
}

void load_weights(torch::nn::Module& module, const TensorsByName& tensors) {
  const auto words = [](const at::Tensor& tensor) {
    return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                       fmt::join(tensor.sizes().vec(), ", "));
  };
  const TensorsByName own = weights_of(module);
  std::string differences;
  for (const auto& [name, tensor] : own) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      differences += fmt::format("\n  {}: {} here, not given", name, words(tensor));
    } else if (words(found->second) != words(tensor)) {
      differences +=
          fmt::format("\n  {}: {} here, given {}", name, words(tensor), words(found->second));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!own.contains(name))
      differences += fmt::format("\n  {}: given {}, not here", name, words(tensor));
  }
  check(differences.empty(), "these weights are another model's:{}", differences);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) at::Tensor(tensor).copy_(tensors.at(name));
}

void write_weights(const std::string& path, const TensorsByName& tensors) {
  std::vector<at::Tensor> kept;
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().cpu().contiguous());
    const at::Tensor& own = kept.back();
    named.push_back({name,
                     to_dtype(own.scalar_type()),
                     own.sizes().vec(),
                     {static_cast<const std::byte*>(own.data_ptr()), own.nbytes()}});
  }
  const SafetensorsLayout layout = plan_safetensors(named, {{"format", "pt"}});
  std::vector<std::span<const std::byte>> parts{as_bytes(layout.head)};
  for (const std::size_t index : layout.order) parts.push_back(named[index].bytes);
  FileSystem& files = FileSystem::real();
  // A name of its own: ranks that all save to one path must not write into each other's file.
  const std::string partial = path + ".partial-" + random_hex(8);
  try {
    write_plain_file(files, partial, parts);
    if (files.rename(partial, path) != 0) refuse("renaming " + partial + " to " + path);
  } catch (const Error&) {
    files.unlink(partial);
    throw;
  }
}

TensorsByName read_weights(const std::string& path) {
  const auto bytes =
      read_plain_file(FileSystem::real(), path, std::numeric_limits<std::int64_t>::max());
  TensorsByName tensors;
  for (const NamedTensor& named : parse_safetensors(bytes, path).tensors) {
    at::Tensor tensor = at::empty(named.shape, to_scalar_type(named.dtype));
    if (!named.bytes.empty())
      std::memcpy(tensor.data_ptr(), named.bytes.data(), named.bytes.size());
    tensors.emplace(named.name, std::move(tensor));
  }
  return tensors;
}

}  // namespace paceline
