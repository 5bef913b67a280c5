#include "paceline/files/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::array<std::pair<Dtype, std::string_view>, 10> kNames = {{
    {Dtype::kFloat32, "F32"},
    {Dtype::kFloat64, "F64"},
    {Dtype::kFloat16, "F16"},
    {Dtype::kBfloat16, "BF16"},
    {Dtype::kInt8, "I8"},
    {Dtype::kInt16, "I16"},
    {Dtype::kInt32, "I32"},
    {Dtype::kInt64, "I64"},
    {Dtype::kUint8, "U8"},
    {Dtype::kBool, "BOOL"},
}};

std::string_view format_name(Dtype dtype) {
  return std::ranges::find(kNames, dtype, &decltype(kNames)::value_type::first)->second;
}

void check_entries(const std::vector<TensorEntry>& tensors) {
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    check(!tensor.name.empty() && tensor.name != kMetadataKey,
          "safetensors: \"{}\" cannot be the name of a tensor", tensor.name);
    check(names.insert(tensor.name).second, "safetensors: two tensors are named \"{}\"",
          tensor.name);
    const auto expected = tensor_bytes(tensor.dtype, tensor.shape);
    check(expected == tensor.bytes,
          "safetensors: tensor \"{}\" has {} bytes, its shape of {} dimensions and type {} need {}",
          tensor.name, tensor.bytes, tensor.shape.size(), name_of(tensor.dtype),
          expected ? std::to_string(*expected) : "more than there can be");
  }
}

// One entry of the header, checked, with its range in the data section.
struct Entry {
  std::uint64_t begin, end;
  TensorEntry tensor;
};

class HeaderReader {
 public:
  HeaderReader(const std::string& where, std::uint64_t data_size, ForeignTypes foreign)
      : where_(where), data_size_(data_size), foreign_(foreign) {}

  Entry entry(const std::string& name, const json& value) const {
    if (!value.is_object() || value.size() != 3)
      refuse(name, "needs dtype, shape and data_offsets");
    Entry entry{0, 0, {.name = name, .shape = shape(name, value)}};
    const auto dtype = element_type(name, value, entry.tensor.foreign_type);
    const auto offsets = value.find("data_offsets");
    if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
      refuse(name, "data_offsets must be two unsigned integers");
    }
    entry.begin = (*offsets)[0].get<std::uint64_t>();
    entry.end = (*offsets)[1].get<std::uint64_t>();
    if (entry.begin > entry.end || entry.end > data_size_) {
      refuse(name, fmt::format("the range {} to {} is outside the {} bytes of data; the file may "
                               "be cut or still be downloading",
                               entry.begin, entry.end, data_size_));
    }
    if (!dtype) return entry;
    entry.tensor.dtype = *dtype;
    const auto expected = tensor_bytes(entry.tensor.dtype, entry.tensor.shape);
    if (expected != entry.end - entry.begin) {
      refuse(name, fmt::format("{} bytes of data do not match its type and shape",
                               entry.end - entry.begin));
    }
    return entry;
  }

  std::map<std::string, std::string> metadata(const json& value) const {
    std::map<std::string, std::string> metadata;
    if (!value.is_object()) refuse(kMetadataKey, "must be an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse(kMetadataKey, fmt::format("\"{}\" must be a string", key));
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

 private:
  // Returns nullopt for a type without a Dtype, and stores that type's name in `foreign`.
  std::optional<Dtype> element_type(const std::string& name, const json& value,
                                    std::string& foreign) const {
    const auto found = value.find("dtype");
    if (found == value.end() || !found->is_string()) refuse(name, "dtype must be a string");
    const auto& text = found->get_ref<const std::string&>();
    for (const auto& [dtype, known] : kNames) {
      if (known == text) return dtype;
    }
    if (foreign_ == ForeignTypes::kKeep) {
      foreign = text;
      return std::nullopt;
    }
    fail(ErrorCode::kUnsupported, "{}: tensor \"{}\": element type \"{}\" is not supported", where_,
         name, text);
  }

  std::vector<std::int64_t> shape(const std::string& name, const json& value) const {
    const auto found = value.find("shape");
    if (found == value.end() || !found->is_array()) refuse(name, "shape must be an array");
    std::vector<std::int64_t> shape;
    for (const auto& size : *found) {
      if (!size.is_number_unsigned() || size.get<std::uint64_t>() > INT64_MAX) {
        refuse(name, "a size in its shape is not a non-negative 64-bit integer");
      }
      shape.push_back(size.get<std::int64_t>());
    }
    return shape;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    fail(ErrorCode::kCorrupt, "{}: tensor \"{}\": {}", where_, name, why);
  }

  const std::string& where_;
  std::uint64_t data_size_;
  ForeignTypes foreign_;
};

// Names the format that the first bytes of a file show; empty for an unknown format.
std::string_view other_format(std::span<const std::byte> head) {
  if (const std::string_view mistaken = mistaken_file(head); !mistaken.empty()) return mistaken;
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("PK\x03\x04") || text.starts_with("\x80\x02"))
    return "a file of torch.save: torch::load(module, path) reads those of a C++ program, and "
           "tools/torch_weights.py of the sources converts those of Python";
  if (text.starts_with("GGUF")) return "a GGUF file; only safetensors can be read";
  if (text.starts_with("\x89HDF")) return "an HDF5 file; only safetensors can be read";
  if (text.starts_with("\x1f\x8b")) return "a gzip file: unpack it first";
  if (text.starts_with("{"))
    return "JSON text: an index must be named *.index.json; anything else may be a server's answer";
  return {};
}

// The sorted ranges must cover the data exactly: a gap could contain anything, and an overlap would
// make two tensors share bytes.
void check_cover(const std::vector<Entry>& entries, std::uint64_t data_size,
                 const std::string& where) {
  std::uint64_t expected = 0;
  for (const auto& entry : entries) {
    if (entry.begin != expected) {
      fail(ErrorCode::kCorrupt, "{}: tensor \"{}\" starts at data byte {}, expected {} ({})", where,
           entry.tensor.name, entry.begin, expected, entry.begin < expected ? "overlap" : "hole");
    }
    expected = entry.end;
  }
  if (expected != data_size) {
    fail(ErrorCode::kCorrupt, "{}: the tensors end at data byte {} of {}", where, expected,
         data_size);
  }
}

}  // namespace

SafetensorsLayout plan_safetensors(const std::vector<TensorEntry>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  check_entries(tensors);
  SafetensorsLayout layout;
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), 0);
  std::ranges::sort(layout.order, {}, [&](std::size_t i) {
    return std::pair(-static_cast<int>(size_of(tensors[i].dtype)),
                     std::string_view(tensors[i].name));
  });
  json header = json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::uint64_t offset = 0;
  for (const auto index : layout.order) {
    const auto& tensor = tensors[index];
    header[tensor.name] = {{"dtype", format_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = strict_json_text(header, "safetensors: a name or a metadata value");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kSafetensorsHeaderLimit,
        "safetensors: {} tensors and their metadata need a header of {} bytes, the limit is {}",
        tensors.size(), text.size(), kSafetensorsHeaderLimit);
  ByteWriter length;
  length.put(static_cast<std::uint64_t>(text.size()));
  layout.head = to_string(length.bytes()) + text;
  return layout;
}

std::uint64_t safetensors_head_bytes(std::span<const std::byte> head, std::uint64_t size,
                                     const std::string& where) {
  if (size < kLengthBytes) {
    fail(ErrorCode::kCorrupt, "{}: {} bytes are too few for a safetensors file", where, size);
  }
  const auto length = ByteReader(head).get<std::uint64_t>();
  if (length > kSafetensorsHeaderLimit || length > size - kLengthBytes) {
    const std::string_view other = other_format(head);
    if (!other.empty()) fail(ErrorCode::kCorrupt, "{}: {}", where, other);
  }
  if (length > kSafetensorsHeaderLimit) {
    fail(ErrorCode::kCorrupt, "{}: a header of {} bytes is over the limit of {}", where, length,
         kSafetensorsHeaderLimit);
  }
  if (length > size - kLengthBytes) {
    fail(
        ErrorCode::kCorrupt,
        "{}: the header of {} bytes reaches past the file's end at byte {}; the file may be cut or "
        "still be downloading",
        where, length, size);
  }
  return kLengthBytes + length;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::uint64_t size,
                                           const std::string& where, ForeignTypes foreign) {
  constexpr int kDepth = 3;  // the header, a tensor, its shape
  SafetensorsHeader parsed{
      .tensors = {}, .data = safetensors_head_bytes(head, size, where), .metadata = {}};
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              parsed.data - kLengthBytes);
  if (text.empty() || text[0] != '{') {
    fail(ErrorCode::kCorrupt, "{}: the header at byte 8 does not start with '{{'", where);
  }
  const std::uint64_t data_size = size - parsed.data;
  const auto header = parse_strict_json(text, where, kDepth);
  const HeaderReader reader(where, data_size, foreign);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      parsed.metadata = reader.metadata(value);
    } else {
      entries.push_back(reader.entry(name, value));
    }
  }
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  check_cover(entries, data_size, where);
  for (auto& entry : entries) {
    entry.tensor.bytes = entry.end - entry.begin;
    parsed.tensors.push_back(std::move(entry.tensor));
  }
  return parsed;
}

namespace {

// Enough bytes to recognise a file of another format.
constexpr std::uint64_t kFirstBytes = 256;

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, ForeignTypes foreign)
    : path_(path), file_(open_plain_file(FileSystem::real(), without_links(path))) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw system_error(path + ": cannot stat");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::vector<std::byte> head(std::min(size, kFirstBytes));
  read_plain_file_at(FileSystem::real(), file_.get(), path_, 0, head);
  head.resize(safetensors_head_bytes(head, size, path_));
  read_plain_file_at(FileSystem::real(), file_.get(), path_, 0, head);
  header_ = parse_safetensors_header(head, size, path_, foreign);
  std::uint64_t position = header_.data;
  for (const TensorEntry& tensor : header_.tensors) {
    positions_[tensor.name] = position;
    position += tensor.bytes;
  }
}

void SafetensorsFile::read(const std::string& name, std::span<std::byte> bytes) const {
  read_plain_file_at(FileSystem::real(), file_.get(), path_, positions_.at(name), bytes);
}

}  // namespace paceline
