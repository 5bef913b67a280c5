#include "paceline/files/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <tuple>

#include <fmt/ranges.h>
#include <xxhash.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/json_text.h"

namespace paceline {

namespace {

std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return fmt::format("{:02x}", fmt::join(canonical.digest, ""));
}

}  // namespace

struct Digest::State {
  // The library allocates its own state, which must be aligned to 64 bytes.
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> xxh{XXH3_createState(),
                                                                      XXH3_freeState};
};

Digest::Digest() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh.get());
}

Digest::~Digest() = default;

void Digest::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

std::string Digest::hex() const { return to_hex(XXH3_128bits_digest(state_->xxh.get())); }

std::string digest_of(std::span<const std::byte> bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::optional<std::uint64_t> tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const auto size : shape) {
    if (size < 0) return std::nullopt;
    // A dimension of zero makes the tensor empty, but must not hide an overflow of the others.
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return std::ranges::count(shape, 0) > 0 ? 0 : static_cast<std::uint64_t>(bytes);
}

namespace {

using nlohmann::json;

constexpr const char* kFormat = "paceline-checkpoint";
constexpr const char* kDigestKey = "xxh3_128_of_the_rest";

std::string dump(const json& value) {
  return strict_json_text(value, "checkpoint: a name or a metadata value", 1) + "\n";
}

std::string seal(json value) {
  value[kDigestKey] = digest_of(as_bytes(dump(value)));
  return dump(value);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestFile &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// A box as text, such as "0 4096 0+3,4+4": file, position, then offset+size for each dimension.
std::string to_text(const StoredBox& stored) {
  std::string text = fmt::format("{} {} ", stored.file, stored.position);
  for (std::size_t i = 0; i < stored.box.sizes.size(); ++i)
    text += fmt::format("{}{}+{}", i == 0 ? "" : ",", stored.box.offsets[i], stored.box.sizes[i]);
  return text;
}

class BoxText {
 public:
  explicit BoxText(std::string_view text) : text_(text) {}

  std::optional<StoredBox> parse(std::size_t dims) {
    StoredBox stored;
    if (!number(stored.file) || !skip(' ') || !number(stored.position) || !skip(' '))
      return std::nullopt;
    for (std::size_t i = 0; i < dims; ++i) {
      std::int64_t offset = 0, size = 0;
      if ((i > 0 && !skip(',')) || !number(offset) || !skip('+') || !number(size))
        return std::nullopt;
      stored.box.offsets.push_back(offset);
      stored.box.sizes.push_back(size);
    }
    return text_.empty() ? std::optional(stored) : std::nullopt;
  }

 private:
  template <class Number>
  bool number(Number& value) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || text_[0] == '-') return false;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return true;
  }
  bool skip(char wanted) {
    if (text_.empty() || text_[0] != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }

  std::string_view text_;
};

bool is_inside(const Box& box, const std::vector<std::int64_t>& shape) {
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.sizes[i] < 1 || box.offsets[i] < 0 || box.offsets[i] > shape[i] - box.sizes[i])
      return false;
  }
  return true;
}

// Describes what is wrong with a tensor's boxes; empty if nothing is.
std::string fault_of(const StoredTensor& tensor) {
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) return fmt::format("it cannot have the shape [{}]", fmt::join(tensor.shape, ", "));
  std::vector<const Box*> boxes;
  std::uint64_t covered = 0;
  for (const StoredBox& stored : tensor.boxes) {
    if (!is_inside(stored.box, tensor.shape))
      return fmt::format("the box {} is not within its shape", to_string(stored.box));
    covered += static_cast<std::uint64_t>(num_elements(stored.box));
    boxes.push_back(&stored.box);
  }
  std::ranges::sort(boxes, [](const Box* a, const Box* b) { return a->offsets < b->offsets; });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      if (!tensor.shape.empty() &&
          boxes[j]->offsets[0] >= boxes[i]->offsets[0] + boxes[i]->sizes[0])
        break;
      if (const auto twice = common_part(*boxes[i], *boxes[j]))
        return fmt::format("the elements {} are in two boxes", to_string(*twice));
    }
  }
  const std::uint64_t elements = *bytes / size_of(tensor.dtype);
  if (covered == elements) return "";
  return fmt::format("a box is missing: {} of its {} elements are in none", elements - covered,
                     elements);
}

void check_tensors(const Manifest& manifest, ErrorCode code, const std::string& where) {
  struct Range {
    std::uint32_t file;
    std::uint64_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const StoredTensor& tensor : manifest.tensors) {
    const std::string fault = tensor.name.empty() ? "it has no name" : fault_of(tensor);
    if (!fault.empty()) fail(code, "{}: tensor \"{}\": {}", where, tensor.name, fault);
    for (const StoredBox& stored : tensor.boxes) {
      const auto bytes =
          static_cast<std::uint64_t>(num_elements(stored.box)) * size_of(tensor.dtype);
      if (stored.file >= manifest.files.size() ||
          stored.position > manifest.files[stored.file].size ||
          bytes > manifest.files[stored.file].size - stored.position) {
        fail(code, "{}: tensor \"{}\": the box {} lies outside of the files", where, tensor.name,
             to_string(stored.box));
      }
      ranges.push_back({stored.file, stored.position, stored.position + bytes, &tensor.name});
    }
  }
  std::ranges::sort(ranges, {}, [](const Range& r) { return std::tuple(r.file, r.begin, r.end); });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const Range &before = ranges[i - 1], &range = ranges[i];
    if (range.file == before.file && range.begin < before.end) {
      fail(code, "{}: {}: byte {} is of tensor \"{}\" and of tensor \"{}\"", where,
           manifest.files[range.file].name, range.begin, *before.name, *range.name);
    }
  }
}

Dtype dtype_named(const std::string& name, const std::string& where) {
  for (const Dtype dtype : kAllDtypes) {
    if (name_of(dtype) == name) return dtype;
  }
  fail(ErrorCode::kUnsupported, "{}: element type \"{}\" is not supported", where, name);
}

StoredTensor tensor_from(const std::string& name, const json& value, const std::string& where) {
  StoredTensor tensor{.name = name,
                      .dtype = dtype_named(value.at("dtype").get<std::string>(), where),
                      .shape = value.at("shape").get<std::vector<std::int64_t>>(),
                      .boxes = {}};
  for (const auto& item : value.at("boxes")) {
    const auto& text = item.get_ref<const std::string&>();
    const auto stored = BoxText(text).parse(tensor.shape.size());
    if (!stored || to_text(*stored) != text) {
      fail(ErrorCode::kCorrupt, "{}: tensor \"{}\": \"{}\" is not a box of {} dimensions", where,
           name, text, tensor.shape.size());
    }
    tensor.boxes.push_back(*stored);
  }
  return tensor;
}

Manifest from_json(const json& value, const std::string& where) {
  Manifest manifest;
  manifest.run = value.at("run").get<std::string>();
  manifest.step = value.at("step").get<std::int64_t>();
  manifest.world_size = value.at("world_size").get<int>();
  for (const auto& item : value.at("files")) {
    ManifestFile file{item.at("name").get<std::string>(), item.at("size").get<std::uint64_t>(),
                      item.at("xxh3_128").get<std::string>()};
    if (!is_plain_name(file.name)) {
      fail(ErrorCode::kCorrupt, "{}: \"{}\" is not a plain file name", where, file.name);
    }
    manifest.files.push_back(std::move(file));
  }
  for (const auto& [name, item] : value.at("tensors").items())
    manifest.tensors.push_back(tensor_from(name, item, where));
  manifest.metadata = value.at("metadata").get<std::map<std::string, std::string>>();
  check_tensors(manifest, ErrorCode::kCorrupt, where);
  return manifest;
}

// The digest is checked before any field except the version is used. So if a manifest is refused
// after this check, another program wrote its digest.
void check_seal(json value, std::string_view text, const std::string& where) {
  const auto found = value.find(kDigestKey);
  if (found == value.end() || !found->is_string()) {
    fail(ErrorCode::kCorrupt, "{}: its digest \"{}\" is missing", where, kDigestKey);
  }
  const auto expected = found->get<std::string>();
  value.erase(kDigestKey);
  const auto actual = digest_of(as_bytes(dump(value)));
  if (expected != actual) {
    fail(ErrorCode::kCorrupt, "{}: digest of the rest: expected {}, found {}", where, expected,
         actual);
  }
  if (seal(value) != text) {
    fail(ErrorCode::kCorrupt, "{}: the text differs from the canonical form of its contents",
         where);
  }
}

}  // namespace

std::uint64_t StoredTensor::bytes() const {
  return static_cast<std::uint64_t>(num_elements(shape)) * size_of(dtype);
}

const StoredTensor* Manifest::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      tensors, name, {}, [](const auto& t) -> std::string_view { return t.name; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

std::uint64_t Manifest::bytes() const {
  std::uint64_t all = 0;
  for (const StoredTensor& tensor : tensors) all += tensor.bytes();
  return all;
}

std::string describe(Dtype dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

void require_whole(const StoredTensor& tensor) {
  const std::string fault = fault_of(tensor);
  check(fault.empty(), "checkpoint: tensor \"{}\": {}", tensor.name, fault);
}

std::string to_json(const Manifest& manifest) {
  check_tensors(manifest, ErrorCode::kInvalid, "checkpoint");
  json files = json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.digest}});
  }
  json tensors = json::object();
  for (const StoredTensor& tensor : manifest.tensors) {
    check(!tensors.contains(tensor.name), "checkpoint: two tensors are named \"{}\"", tensor.name);
    json boxes = json::array();
    for (const StoredBox& stored : tensor.boxes) boxes.push_back(to_text(stored));
    tensors[tensor.name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"boxes", boxes}};
  }
  return seal({{"format", kFormat},
               {"version", kManifestVersion},
               {"step", manifest.step},
               {"run", manifest.run},
               {"world_size", manifest.world_size},
               {"files", files},
               {"tensors", tensors},
               {"metadata", manifest.metadata}});
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  constexpr int kDepth = 4;  // the manifest, its tensors, a tensor, its boxes
  const auto value = parse_strict_json(text, where, kDepth);
  const auto version = value.find("version");  // checked first: other versions have other fields
  if (version != value.end() && version->is_number_integer() && *version != kManifestVersion) {
    fail(ErrorCode::kUnsupported, "{}: format version {}; this release reads version {}", where,
         version->get<std::int64_t>(), kManifestVersion);
  }
  check_seal(value, text, where);
  try {
    if (value.at("format") != kFormat || version == value.end())
      fail(ErrorCode::kCorrupt, "{}: not a checkpoint", where);
    return from_json(value, where);
  } catch (const json::exception& error) {
    fail(ErrorCode::kCorrupt, "{}: {}", where, error.what());
  }
}

}  // namespace paceline
