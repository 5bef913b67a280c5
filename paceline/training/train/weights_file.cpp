#include "paceline/training/train/weights_file.h"

#include <optional>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/no_links.h"
#include "paceline/engine/core/secret.h"
#include "paceline/files/checkpoint/plain_file.h"
#include "paceline/files/checkpoint/safetensors.h"
#include "paceline/files/checkpoint/safetensors_file.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/foreign_elements.h"
#include "paceline/training/train/weights_shards.h"

namespace paceline {
namespace {

// Error(kCorrupt) unless the shard has exactly the tensors that the index promises.
void require_promised(const WeightsShard& shard, const SafetensorsHeader& header) {
  if (!shard.tensors) return;
  std::set<std::string> missing = *shard.tensors;
  for (const TensorEntry& entry : header.tensors) {
    if (missing.erase(entry.name) == 0) {
      fail(ErrorCode::kCorrupt,
           "{}: it has the tensor \"{}\", which the index does not expect there", shard.path,
           entry.name);
    }
  }
  if (!missing.empty()) {
    fail(ErrorCode::kCorrupt, "{}: the index promises the tensor \"{}\", which the file lacks",
         shard.path, *missing.begin());
  }
}

at::Tensor read_foreign(const SafetensorsFile& file, const TensorEntry& entry,
                        const std::string& path, bool widen) {
  std::optional<at::Tensor> tensor;
  if (widen) {
    std::vector<std::byte> bytes(entry.bytes);
    file.read(entry.name, bytes);
    tensor = widened(entry.foreign_type, entry.shape, bytes);
  }
  if (tensor) return *tensor;
  fail(ErrorCode::kUnsupported,
       "{}: tensor \"{}\": element type \"{}\" is not supported; leave it out with "
       "ReadWeightsOptions::skip{}",
       path, entry.name, entry.foreign_type,
       widen ? "" : ", or try ReadWeightsOptions::widen, which converts some types");
}

at::Tensor read_tensor(const SafetensorsFile& file, const TensorEntry& entry, bool widen) {
  at::Tensor tensor = at::empty(entry.shape, to_scalar_type(entry.dtype));
  if (entry.bytes > 0)
    file.read(entry.name, {static_cast<std::byte*>(tensor.data_ptr()), entry.bytes});
  return widen && size_of(entry.dtype) == 2 && is_floating_point(entry.dtype)
             ? tensor.to(at::kFloat)
             : tensor;
}

void read_shard(const WeightsShard& shard, const ReadWeightsOptions& options,
                TensorsByName& tensors) {
  const SafetensorsFile file(shard.path, ForeignTypes::kKeep);
  require_promised(shard, file.header());
  for (const TensorEntry& entry : file.header().tensors) {
    if (options.skip && options.skip(entry.name)) continue;
    tensors.emplace(entry.name, entry.foreign_type.empty()
                                    ? read_tensor(file, entry, options.widen)
                                    : read_foreign(file, entry, shard.path, options.widen));
  }
}

}  // namespace

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
  const std::string place = in_folder_without_links(path);
  const std::string partial = place + ".partial-" + random_hex(8);
  try {
    write_plain_file(files, partial, parts);
    if (files.rename(partial, place) != 0) refuse("renaming " + partial + " to " + place);
  } catch (const Error&) {
    files.unlink(partial);
    throw;
  }
}

TensorsByName read_weights(const std::string& path, const ReadWeightsOptions& options) {
  TensorsByName tensors;
  for (const WeightsShard& shard : find_weights_shards(path)) read_shard(shard, options, tensors);
  return tensors;
}

}  // namespace paceline
