#include "paceline/training/train/checkpoints/read_checkpoint.h"

#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/checkpoints/run_boxes.h"

namespace paceline::train {
namespace {

constexpr const char* kAveraged = "average.weight.";
constexpr const char* kNumUpdates = "average.num_updates";

at::Tensor room_of(const StoredTensor& tensor) {
  return at::empty(tensor.shape, to_scalar_type(tensor.dtype));
}

WantedBox whole(const StoredTensor& tensor, const at::Tensor& to) {
  return {tensor.name, whole_box(tensor.shape), static_cast<std::byte*>(to.data_ptr())};
}

// Whether the checkpoint has an average that has been updated.
bool has_average(BoxReader& reader, const Manifest& manifest) {
  const StoredTensor* const stored = manifest.find(kNumUpdates);
  if (stored == nullptr) return false;
  const at::Tensor updates = room_of(*stored);
  const WantedBox wanted = whole(*stored, updates);
  reader.read(std::span(&wanted, 1));
  return updates.numel() > 0 && updates.flatten()[0].item<double>() > 0;
}

CheckpointWeights read_step(const CheckpointDirectory& from, std::int64_t step, bool averaged) {
  const Manifest manifest = from.read_manifest(step);
  BoxReader reader(from.files(), from.folder_of(step), manifest);
  CheckpointWeights read{.step = step, .averaged = averaged && has_average(reader, manifest)};
  std::vector<WantedBox> wanted;
  std::vector<std::pair<std::string, at::ScalarType>> to_round;  // averages, which are float32
  for (const StoredTensor& tensor : manifest.tensors) {
    if (!tensor.name.starts_with(kModelTensors)) continue;
    const std::string name = tensor.name.substr(kModelTensors.size());
    const StoredTensor* const average = read.averaged ? manifest.find(kAveraged + name) : nullptr;
    const StoredTensor& source = average != nullptr ? *average : tensor;
    const at::Tensor room = room_of(source);
    if (source.dtype != tensor.dtype) to_round.emplace_back(name, to_scalar_type(tensor.dtype));
    if (room.numel() > 0) wanted.push_back(whole(source, room));
    read.weights.emplace(name, room);
  }
  check(!read.weights.empty(), "{}: it has no tensor named \"{}…\", so it is not a training run's",
        from.folder_of(step), kModelTensors);
  reader.read(wanted);
  for (const auto& [name, type] : to_round) read.weights[name] = read.weights[name].to(type);
  return read;
}

// Error(kInvalid) if the path is not a directory with checkpoints.
void require_run(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  check(fs::exists(path, ignored), "{}: the directory does not exist", path);
  check(fs::is_directory(path, ignored),
        "{}: it is a file, not the directory of a run; read_weights() reads files of weights",
        path);
  check(!fs::exists(path + "/" + kManifestFile, ignored),
        "{}: it is one checkpoint: give the directory that contains it, and the step", path);
}

}  // namespace

CheckpointWeights read_checkpoint(const std::string& directory, std::optional<std::int64_t> wanted,
                                  bool averaged) {
  const CheckpointDirectory from(directory, {.read_only = true});
  require_run(directory);
  if (wanted) {
    from.require_step(*wanted);
    return read_step(from, *wanted, averaged);
  }
  const auto steps = from.list();
  check(!steps.empty(), "{}: there is no checkpoint in this directory", directory);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return read_step(from, *step, averaged);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      log::warning(fmt::format("{}: the checkpoint of step {} is skipped: {}", directory, *step,
                               error.what()));
    }
  }
  fail(ErrorCode::kCorrupt, "{}: all {} checkpoints are damaged; the warnings above say where",
       directory, steps.size());
}

}  // namespace paceline::train
