#include "paceline/training/train/weights_shards.h"

#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/file_start.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/files/checkpoint/plain_file.h"
#include "paceline/files/checkpoint/strict_json.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndexEnd = ".index.json";
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;
constexpr int kIndexDepth = 8;  // "metadata" may hold anything

// The path without links. Error(kCorrupt) when there is no such file.
std::string resolved(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error) return real.string();
  if (error != std::errc::no_such_file_or_directory)
    fail(ErrorCode::kCorrupt, "{}: cannot open: {}", path.string(), error.message());
  fail(ErrorCode::kCorrupt, "{}: the file is missing{}", path.string(),
       fs::is_symlink(fs::symlink_status(path, error)) ? ": the link points to nothing" : "");
}

// Finds the file of the folder that has its weights.
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

// The files of the index, by name, with their tensors.
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

}  // namespace

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

}  // namespace paceline
