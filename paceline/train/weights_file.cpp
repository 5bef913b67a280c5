#include "paceline/train/weights_file.h"

#include <cstring>
#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/checkpoint/plain_file.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/core/bytes.h"
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
  const std::string partial = path + ".partial";
  if (files.unlink(partial) != 0 && errno != ENOENT) refuse("removing " + partial);
  write_plain_file(files, partial, parts);
  if (files.rename(partial, path) != 0) refuse("renaming " + partial + " to " + path);
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
