#include "paceline/files/table_files/table_files.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/table_files/table_checkpoints.h"

namespace paceline::tables {

namespace {

constexpr const char* kPrefix = "tables/";

// An array of a cut, as it is stored.
struct Part {
  std::string name;
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

std::string prefix_of(const std::string& table) { return kPrefix + table + "/"; }

template <class T>
Part part_of(const std::string& table, const char* name, Dtype dtype, const std::vector<T>& values,
             std::int64_t columns = 0) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::int64_t> shape = {count};
  if (columns != 0) shape = {count / columns, columns};
  return {prefix_of(table) + name, dtype, shape, std::as_bytes(std::span(values))};
}

std::vector<Part> parts_of(const std::string& table, const TableCut& cut) {
  return {part_of(table, "admitted", Dtype::kUint8, cut.admitted),
          part_of(table, "ids", Dtype::kInt64, cut.ids),
          part_of(table, "rows", Dtype::kFloat32, cut.rows, cut.row_floats),
          part_of(table, "sessions", Dtype::kInt64, cut.sessions, 5),
          part_of(table, "sightings", Dtype::kInt32, cut.sightings),
          part_of(table, "used", Dtype::kInt64, cut.used)};
}

// The fields of a cut that are not arrays, as one text. Floats are hexadecimal, which is exact.
std::string text_of(const TableCut& cut) {
  return fmt::format("{} {} {} {} {:a} {:a} {}", cut.width, cut.optimizer, cut.row_floats, cut.seed,
                     cut.initial_range, cut.lr, cut.now);
}

TableCut parse(const std::string& text, const std::string& where) {
  TableCut cut;
  std::array<char, 33> optimizer{};
  if (std::sscanf(text.c_str(), "%u %32s %u %lu %a %la %lu", &cut.width, optimizer.data(),
                  &cut.row_floats, &cut.seed, &cut.initial_range, &cut.lr, &cut.now) != 7)
    fail(ErrorCode::kCorrupt, "{}: the description of a table, '{}', is damaged", where, text);
  cut.optimizer = optimizer.data();
  return cut;
}

void check_names(const std::map<std::string, TableCut>& tables) {
  for (const auto& [name, cut] : tables) {
    check(!name.empty() && name.find('/') == std::string::npos,
          "save: table '{}': the name must not be empty or have a slash", name);
  }
}

Manifest write_files(FileSystem& files, const std::string& folder, std::int64_t step,
                     const std::map<std::string, TableCut>& tables,
                     const std::map<std::string, std::string>& texts) {
  Manifest manifest{.step = step, .metadata = texts};
  std::vector<Part> parts;
  for (const auto& [name, cut] : tables) {
    manifest.metadata[kPrefix + name] = text_of(cut);
    for (Part& part : parts_of(name, cut)) parts.push_back(std::move(part));
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.name < b.name; });
  const std::uint64_t bytes =
      std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const Part& part) { return sum + part.bytes.size(); });
  BoxFileWriter file(files, folder + "/" + box_file_name(0, 1), {.step = step}, bytes);
  std::uint64_t position = 0;
  for (const Part& part : parts) {
    StoredTensor tensor{.name = part.name, .dtype = part.dtype, .shape = part.shape};
    if (!part.bytes.empty()) {
      tensor.boxes.push_back({.box = whole_box(part.shape), .file = 0, .position = position});
      file.add(part.bytes);
    }
    position += part.bytes.size();
    manifest.tensors.push_back(std::move(tensor));
  }
  manifest.files.push_back(file.finish());
  return manifest;
}

template <class T>
void read_part(BoxReader& reader, const Manifest& manifest, const std::string& name, Dtype dtype,
               std::vector<T>& values, const std::string& where) {
  const StoredTensor* const tensor = manifest.find(name);
  if (tensor == nullptr || tensor->dtype != dtype)
    fail(ErrorCode::kCorrupt, "{}: tensor {} is missing or has another type", where, name);
  values.resize(static_cast<std::size_t>(num_elements(tensor->shape)));
  if (values.empty()) return;
  const WantedBox wanted{name, whole_box(tensor->shape),
                         reinterpret_cast<std::byte*>(values.data())};
  reader.read(std::span(&wanted, 1));
}

}  // namespace

void save_tables(CheckpointDirectory& directory, std::int64_t step,
                 const std::map<std::string, TableCut>& tables,
                 const std::map<std::string, std::string>& texts) {
  check_names(tables);
  directory.save_files(step, [&](const std::string& folder) {
    return write_files(directory.files(), folder, step, tables, texts);
  });
}

TableCut load_table(const CheckpointDirectory& directory, std::int64_t step,
                    const std::string& table) {
  directory.require_step(step);
  const Manifest manifest = directory.read_manifest(step);
  const std::string where = fmt::format("{}, table '{}'", directory.folder_of(step), table);
  const auto found = manifest.metadata.find(kPrefix + table);
  check(found != manifest.metadata.end(), "load: {}: no such table; the checkpoint has: {}", where,
        fmt::join(tables_in(directory, step), ", "));
  TableCut cut = parse(found->second, where);
  BoxReader reader(directory.files(), directory.folder_of(step), manifest);
  const std::string prefix = prefix_of(table);
  read_part(reader, manifest, prefix + "admitted", Dtype::kUint8, cut.admitted, where);
  read_part(reader, manifest, prefix + "ids", Dtype::kInt64, cut.ids, where);
  read_part(reader, manifest, prefix + "rows", Dtype::kFloat32, cut.rows, where);
  read_part(reader, manifest, prefix + "sessions", Dtype::kInt64, cut.sessions, where);
  read_part(reader, manifest, prefix + "sightings", Dtype::kInt32, cut.sightings, where);
  read_part(reader, manifest, prefix + "used", Dtype::kInt64, cut.used, where);
  return cut;
}

std::vector<std::string> tables_in(const CheckpointDirectory& directory, std::int64_t step) {
  std::vector<std::string> names;
  const std::size_t prefix = std::string(kPrefix).size();
  for (const auto& [name, text] : directory.read_manifest(step).metadata)
    if (name.starts_with(kPrefix)) names.push_back(name.substr(prefix));
  return names;
}

std::map<std::string, std::string> texts_in(const CheckpointDirectory& directory,
                                            std::int64_t step) {
  auto texts = directory.read_manifest(step).metadata;
  std::erase_if(texts, [](const auto& entry) { return entry.first.starts_with(kPrefix); });
  return texts;
}

TableCheckpoints::TableCheckpoints(const std::string& folder, int keep, bool read_only)
    : directory_(std::make_unique<CheckpointDirectory>(
          folder, CheckpointDirectoryOptions{.keep = keep, .read_only = read_only})) {}

TableCheckpoints::~TableCheckpoints() = default;

void TableCheckpoints::save(std::int64_t step, const std::map<std::string, TableCut>& tables,
                            const std::map<std::string, std::string>& texts) {
  save_tables(*directory_, step, tables, texts);
}

std::vector<std::int64_t> TableCheckpoints::steps() const { return directory_->list(); }

TableCut TableCheckpoints::load(std::int64_t step, const std::string& table) const {
  return load_table(*directory_, step, table);
}

std::vector<std::string> TableCheckpoints::tables(std::int64_t step) const {
  directory_->require_step(step);
  return tables_in(*directory_, step);
}

std::map<std::string, std::string> TableCheckpoints::texts(std::int64_t step) const {
  directory_->require_step(step);
  return texts_in(*directory_, step);
}

}  // namespace paceline::tables
