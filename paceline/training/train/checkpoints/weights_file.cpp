#include "paceline/training/train/checkpoints/weights_file.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/safetensors.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

// Converts an 8-bit float: a sign bit, the exponent, then `mantissa` bits.
float small_float(std::uint8_t bits, int mantissa, int bias) {
  const int exponent = (bits & 0x7F) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const float magnitude =
      exponent == 0
          ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa)
          : std::ldexp(static_cast<float>(fraction + (1 << mantissa)), exponent - bias - mantissa);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// OCP's FP8 (2023): E4M3 has no infinities, and one NaN for each sign.
float from_e4m3(std::uint8_t bits) {
  if ((bits & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return small_float(bits, 3, 7);
}

// E5M2 is the upper byte of an IEEE half-precision number.
float from_e5m2(std::uint8_t bits) {
  if ((bits & 0x7F) > 0x7C) return std::numeric_limits<float>::quiet_NaN();
  if ((bits & 0x7F) == 0x7C) {
    return (bits & 0x80) != 0 ? -std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::infinity();
  }
  return small_float(bits, 2, 15);
}

template <class From, class To, class Widen>
void widen_all(std::span<const std::byte> bytes, at::Tensor& to, const Widen& widen) {
  To* out = to.data_ptr<To>();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(From)) {
    From value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    *out++ = widen(value);
  }
}

std::optional<at::Tensor> room_for(const std::vector<std::int64_t>& shape, std::size_t bytes,
                                   std::size_t element, at::ScalarType type) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(size), &count)) return {};
  }
  if (bytes % element != 0 || bytes / element != count) return {};
  return at::empty(shape, type);
}

// Converts a tensor of a type that the engine does not support. `foreign_type` is the type's name
// in a safetensors file: F8_E4M3 and F8_E5M2 become float32, U16 int32 and U32 int64. Returns
// nullopt for other types, such as F4 and F8_E8M0, and when the number of bytes does not match the
// shape.
std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes) {
  std::optional<at::Tensor> to;
  if (foreign_type == "F8_E4M3" || foreign_type == "F8_E5M2") {
    to = room_for(shape, bytes.size(), 1, at::kFloat);
    const auto widen = foreign_type == "F8_E4M3" ? from_e4m3 : from_e5m2;
    if (to) widen_all<std::uint8_t, float>(bytes, *to, widen);
  } else if (foreign_type == "U16") {
    to = room_for(shape, bytes.size(), 2, at::kInt);
    const auto widen = [](std::uint16_t value) { return std::int32_t{value}; };
    if (to) widen_all<std::uint16_t, std::int32_t>(bytes, *to, widen);
  } else if (foreign_type == "U32") {
    to = room_for(shape, bytes.size(), 4, at::kLong);
    const auto widen = [](std::uint32_t value) { return std::int64_t{value}; };
    if (to) widen_all<std::uint32_t, std::int64_t>(bytes, *to, widen);
  }
  return to;
}

namespace fs = std::filesystem;

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndexEnd = ".index.json";
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;
constexpr int kIndexDepth = 8;  // "metadata" may contain any values

// Returns the path with all links resolved. Error(kCorrupt) when there is no such file.
std::string resolved(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error) return real.string();
  if (const std::string problem = folder_problem(path.string()); !problem.empty())
    fail(ErrorCode::kCorrupt, "{}: {}", path.string(), problem);
  if (error != std::errc::no_such_file_or_directory)
    fail(ErrorCode::kCorrupt, "{}: cannot open: {}", path.string(), error.message());
  fail(ErrorCode::kCorrupt, "{}: the file is missing{}", path.string(),
       fs::is_symlink(fs::symlink_status(path, error)) ? ": the link points to nothing" : "");
}

// Finds the file with the weights of a folder.
fs::path weights_in(const fs::path& folder) {
  std::vector<std::string> others;
  for (const std::string& name : {std::string(kOneFile), kOneFile + std::string(kIndexEnd)}) {
    std::error_code error;
    if (fs::exists(fs::symlink_status(folder / name, error))) return folder / name;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    for (const char* end : {".safetensors", ".bin", ".pth", ".pt", ".gguf"}) {
      if (name.ends_with(end) && others.size() < 8) others.push_back(name);
    }
  }
  fail(ErrorCode::kCorrupt,
       "{}: the folder has neither {} nor {}{}{}; name a .safetensors file, or convert a file of "
       "torch.save with tools/torch_weights.py",
       folder.string(), kOneFile, kOneFile, kIndexEnd,
       others.empty() ? "" : fmt::format(" (it has {})", fmt::join(others, ", ")));
}

// Returns the files of the index, by name, with their tensors.
std::map<std::string, std::set<std::string>> parse_index(const std::string& path) {
  const auto bytes = read_plain_file(FileSystem::real(), resolved(path), kMaxIndexBytes);
  const std::string_view mistaken = mistaken_file(bytes);
  if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", path, mistaken);
  const auto index = parse_strict_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                       path, kIndexDepth);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    fail(ErrorCode::kCorrupt, "{}: an index needs a \"weight_map\" from tensors to files", path);
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      fail(ErrorCode::kCorrupt, "{}: the file of tensor \"{}\" is not a string", path, tensor);
    }
    const auto& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      fail(ErrorCode::kCorrupt,
           "{}: the file {} of tensor \"{}\" is not the name of a file beside the index", path,
           json_text(shard), tensor);
    }
    shards[name].insert(tensor);
  }
  return shards;
}

// One of the safetensors files with the weights of a path: the file itself, or a shard of an index
// in Hugging Face's format:
//
//   {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
struct WeightsShard {
  std::string path;
  // The tensors that the index lists for this file; nullopt: there is no index.
  std::optional<std::set<std::string>> tensors;
};

// `path`: a file, an index (*.index.json), or a folder that contains model.safetensors or
// model.safetensors.index.json. The index names each shard by the plain name of a file in the
// index's own folder. Error(kCorrupt), which names the problem. Symbolic links are resolved in the
// returned paths, because Hugging Face's caches consist of links.
std::vector<WeightsShard> find_weights_shards(const std::string& path) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? weights_in(path) : fs::path(path);
  if (!file.string().ends_with(kIndexEnd)) return {{resolved(file), std::nullopt}};
  std::vector<WeightsShard> shards;
  for (auto& [name, tensors] : parse_index(file.string())) {
    const fs::path shard = file.parent_path() / name;
    if (!fs::exists(shard, error)) {
      fail(ErrorCode::kCorrupt,
           "{}: the file {} with {} of its tensors, such as \"{}\", is missing", file.string(),
           name, tensors.size(), *tensors.begin());
    }
    shards.push_back({resolved(shard), std::move(tensors)});
  }
  return shards;
}

// Error(kCorrupt) unless the shard has exactly the tensors that the index lists.
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

void read_shard(const WeightsShard& shard, const ReadWeightsOptions& options, StateDict& tensors) {
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

void load_weights(torch::nn::Module& module, const StateDict& tensors) {
  const auto words = [](const at::Tensor& tensor) {
    return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                       fmt::join(tensor.sizes().vec(), ", "));
  };
  const StateDict own = weights_of(module);
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
  check(differences.empty(), "these weights belong to another model:{}", first_lines(differences));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) at::Tensor(tensor).copy_(tensors.at(name));
}

void write_weights(const std::string& path, const StateDict& tensors) {
  std::vector<at::Tensor> kept;
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().cpu().contiguous());
    const at::Tensor& own = kept.back();
    entries.push_back({name, to_dtype(own.scalar_type()), own.sizes().vec(), own.nbytes()});
  }
  const SafetensorsLayout layout = plan_safetensors(entries, {{"format", "pt"}});
  std::vector<std::span<const std::byte>> parts{as_bytes(layout.head)};
  for (const std::size_t index : layout.order)
    parts.emplace_back(static_cast<const std::byte*>(kept[index].data_ptr()), kept[index].nbytes());
  FileSystem& files = FileSystem::real();
  // The name is random, because ranks that all save to the same path must not write to the same
  // file.
  const std::string place = in_folder_without_links(path);
  check(!fs::is_directory(place), "{}: it is a folder: name the file to write", path);
  const std::string partial = place + ".partial-" + random_hex(8);
  try {
    write_plain_file(files, partial, parts);
    if (files.rename(partial, place) != 0) refuse("renaming " + partial + " to " + place);
  } catch (const Error&) {
    files.unlink(partial);
    throw;
  }
}

StateDict read_weights(const std::string& path, const ReadWeightsOptions& options) {
  StateDict tensors;
  for (const WeightsShard& shard : find_weights_shards(path)) read_shard(shard, options, tensors);
  return tensors;
}

}  // namespace paceline
