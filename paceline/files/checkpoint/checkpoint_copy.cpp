#include "paceline/files/checkpoint/checkpoint_copy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <utility>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/safetensors.h"

namespace paceline {
namespace {

// The keys that an export adds to the checkpoint's own metadata.
constexpr const char* kStepKey = "paceline_step";
constexpr const char* kRunKey = "paceline_run";
constexpr const char* kRanksKey = "paceline_world_size";
constexpr const char* kFormatKey = "format";  // Python's convention
constexpr std::string_view kModel = "model.";

using Metadata = std::map<std::string, std::string>;

Manifest manifest_of(const CheckpointDirectory& directory, std::int64_t step) {
  directory.require_step(step);
  return directory.read_manifest(step);
}

void require_free(const CheckpointDirectory& into, std::int64_t step) {
  check(!std::ranges::binary_search(into.list(), step),
        "checkpoint directory {}: it has a checkpoint of step {} already", into.path(), step);
}

std::vector<std::byte> read_tensor(BoxReader& reader, const StoredTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  const WantedBox wanted{tensor.name, whole_box(tensor.shape), bytes.data()};
  reader.read(std::span(&wanted, 1));
  return bytes;
}

// Writes one file with whole tensors in the order of the manifest, and returns the manifest with
// their boxes. `read` returns the bytes of a tensor.
using ReadTensor = std::function<std::vector<std::byte>(const StoredTensor& tensor)>;
Manifest write_whole(FileSystem& files, const std::string& folder, Manifest manifest,
                     const ReadTensor& read) {
  std::uint64_t position = 0;
  for (StoredTensor& tensor : manifest.tensors) {
    tensor.boxes.clear();
    if (tensor.bytes() > 0) tensor.boxes.push_back({whole_box(tensor.shape), 0, position});
    position += tensor.bytes();
  }
  BoxFileWriter writer(files, folder + "/" + box_file_name(0, 1), {manifest.step, manifest.run, 0},
                       position);
  for (const StoredTensor& tensor : manifest.tensors) writer.add(read(tensor));
  manifest.files = {writer.finish()};
  return manifest;
}

std::int64_t number_in(const Metadata& metadata, const char* key, std::int64_t otherwise) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return otherwise;
  std::int64_t number = 0;
  const char* const end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, number);
  return error == std::errc() && stop == end && number >= 0 ? number : otherwise;
}

std::size_t elements_that_differ(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                                 std::size_t element) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < a.size(); at += element)
    count += std::memcmp(a.data() + at, b.data() + at, element) != 0 ? 1 : 0;
  return count;
}

}  // namespace

std::uint64_t export_safetensors(const CheckpointDirectory& from, std::int64_t step,
                                 const std::string& file, const ExportOptions& options) {
  const Manifest manifest = manifest_of(from, step);
  std::vector<TensorEntry> entries;
  std::vector<const StoredTensor*> tensors;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (options.weights_only && !tensor.name.starts_with(kModel)) continue;
    tensors.push_back(&tensor);
    entries.push_back({options.weights_only ? tensor.name.substr(kModel.size()) : tensor.name,
                       tensor.dtype, tensor.shape, tensor.bytes()});
  }
  check(!options.weights_only || !entries.empty(), "{}: it has no tensor named \"{}…\"",
        from.folder_of(step), kModel);
  Metadata metadata = options.weights_only ? Metadata() : manifest.metadata;
  metadata[kFormatKey] = "pt";
  if (!options.weights_only) {
    metadata[kStepKey] = std::to_string(step);
    metadata[kRunKey] = manifest.run;
    metadata[kRanksKey] = std::to_string(manifest.world_size);
  }
  const SafetensorsLayout layout = plan_safetensors(entries, metadata);
  std::uint64_t size = layout.head.size();
  for (const TensorEntry& entry : entries) size += entry.bytes;
  FileSystem& files = FileSystem::real();
  const std::string place = in_folder_without_links(file);
  const std::string partial = place + ".partial-" + random_hex(8);
  try {
    PlainFileWriter writer(files, partial, size);
    writer.write(as_bytes(layout.head));
    BoxReader reader(from.files(), from.folder_of(step), manifest);
    for (const std::size_t index : layout.order) writer.write(read_tensor(reader, *tensors[index]));
    writer.finish();
    if (files.rename(partial, place) != 0) refuse("renaming " + partial + " to " + place);
  } catch (const Error&) {
    files.unlink(partial);
    throw;
  }
  return size;
}

std::int64_t import_safetensors(const std::string& file, CheckpointDirectory& into) {
  const SafetensorsFile source(file);
  Manifest manifest{.step = 0,
                    .run = {},
                    .world_size = 1,
                    .files = {},
                    .tensors = {},
                    .metadata = source.header().metadata};
  manifest.step = number_in(manifest.metadata, kStepKey, 0);
  manifest.world_size =
      static_cast<int>(std::min<std::int64_t>(number_in(manifest.metadata, kRanksKey, 1), 1 << 30));
  if (manifest.metadata.contains(kRunKey)) manifest.run = manifest.metadata.at(kRunKey);
  for (const char* key : {kStepKey, kRunKey, kRanksKey, kFormatKey}) manifest.metadata.erase(key);
  require_free(into, manifest.step);
  for (const TensorEntry& tensor : source.header().tensors)
    manifest.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  std::ranges::sort(manifest.tensors, {}, &StoredTensor::name);
  into.save_files(manifest.step, [&](const std::string& folder) {
    return write_whole(into.files(), folder, manifest, [&](const StoredTensor& tensor) {
      std::vector<std::byte> bytes(tensor.bytes());
      source.read(tensor.name, bytes);
      return bytes;
    });
  });
  return manifest.step;
}

void merge_checkpoint(const CheckpointDirectory& from, std::int64_t step,
                      CheckpointDirectory& into) {
  const Manifest manifest = manifest_of(from, step);
  require_free(into, step);
  into.save_files(step, [&](const std::string& folder) {
    BoxReader reader(from.files(), from.folder_of(step), manifest);
    return write_whole(into.files(), folder, manifest, [&](const StoredTensor& tensor) {
      return read_tensor(reader, *manifest.find(tensor.name));
    });
  });
}

std::vector<TensorDifference> diff_checkpoints(const CheckpointDirectory& first,
                                               std::int64_t first_step,
                                               const CheckpointDirectory& second,
                                               std::int64_t second_step) {
  const Manifest a = manifest_of(first, first_step), b = manifest_of(second, second_step);
  BoxReader from_a(first.files(), first.folder_of(first_step), a);
  BoxReader from_b(second.files(), second.folder_of(second_step), b);
  std::vector<TensorDifference> differences;
  for (const StoredTensor& tensor : a.tensors) {
    const StoredTensor* const other = b.find(tensor.name);
    const std::string what = describe(tensor.dtype, tensor.shape);
    if (other == nullptr) {
      differences.push_back({tensor.name, what + " in the first, not in the second"});
    } else if (what != describe(other->dtype, other->shape)) {
      differences.push_back({tensor.name, fmt::format("{} in the first, {} in the second", what,
                                                      describe(other->dtype, other->shape))});
    } else {
      const std::size_t element = size_of(tensor.dtype);
      const auto count =
          elements_that_differ(read_tensor(from_a, tensor), read_tensor(from_b, *other), element);
      if (count == 0) continue;
      differences.push_back(
          {tensor.name, fmt::format("{} of {} elements", count, tensor.bytes() / element)});
    }
  }
  for (const StoredTensor& tensor : b.tensors) {
    if (a.find(tensor.name) == nullptr) {
      differences.push_back(
          {tensor.name, describe(tensor.dtype, tensor.shape) + " in the second, not in the first"});
    }
  }
  Metadata words = a.metadata;
  words.insert(b.metadata.begin(), b.metadata.end());
  for (const auto& [key, text] : words) {
    const auto one = a.metadata.find(key), two = b.metadata.find(key);
    if (one != a.metadata.end() && two != b.metadata.end() && one->second == two->second) continue;
    const auto show = [](const auto& found, const Metadata& in) {
      return found == in.end() ? std::string("nothing") : found->second;
    };
    differences.push_back(
        {"metadata " + key, fmt::format("{} in the first, {} in the second", show(one, a.metadata),
                                        show(two, b.metadata))});
  }
  return differences;
}

}  // namespace paceline
