#include "paceline/training/data/token_dataset.h"

#include <filesystem>
#include <limits>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"

namespace paceline::data {
namespace {

template <class Element>
bool write_as(int file, std::span<const std::int32_t> tokens) {
  constexpr auto kMaxToken = static_cast<std::int64_t>(std::numeric_limits<Element>::max());
  std::vector<Element> row;
  row.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    check(token >= 0 && token <= kMaxToken, "TokenDataset::write: {} does not fit {} bits", token,
          8 * sizeof(Element));
    row.push_back(static_cast<Element>(token));
  }
  return write_whole(file, std::as_bytes(std::span(row)));
}

void require_width(at::ScalarType type) {
  check(type == at::kShort || type == at::kInt,
        "a file of tokens has elements of 16 or 32 bits (at::kShort or at::kInt), not {}",
        c10::toString(type));
}

}  // namespace

void TokenDataset::write(const std::string& path, std::span<const std::int32_t> tokens,
                         at::ScalarType type) {
  require_width(type);
  FileDraft draft(path);  // a random name, because several ranks may write to one path
  const bool is_written = type == at::kShort ? write_as<std::uint16_t>(draft.fd(), tokens)
                                             : write_as<std::int32_t>(draft.fd(), tokens);
  if (!is_written) throw system_error("writing " + path);
  draft.publish();
}

at::Tensor TokenDataset::map(const std::string& path, at::ScalarType type) {
  require_width(type);
  const std::int64_t bytes_per_token = type == at::kShort ? 2 : 4;
  std::error_code error;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  if (error) fail(ErrorCode::kCorrupt, "{}: {}", path, error.message());
  if (!std::filesystem::is_regular_file(path) || bytes == 0 || bytes % bytes_per_token != 0) {
    fail(ErrorCode::kCorrupt, "{}: {} bytes are not one or more whole tokens of {} bytes", path,
         bytes, bytes_per_token);
  }
  return at::from_file(path, /*shared=*/false, bytes / bytes_per_token, at::TensorOptions(type));
}

TokenDataset::TokenDataset(std::string name, at::Tensor tokens, std::int64_t context)
    : name_(std::move(name)), tokens_(std::move(tokens)), context_(context) {
  const auto type = tokens_.scalar_type();
  check(tokens_.dim() == 1 && (type == at::kShort || type == at::kInt || type == at::kLong),
        "{}: tokens are a row of int16, int32 or int64", name_);
  check(context_ > 0, "{}: a context of {} tokens", name_, context_);
  check(tokens_.numel() > context_,
        "{}: the text has {} tokens; a context of {} needs at least {}; take a longer text or a "
        "smaller context",
        name_, tokens_.numel(), context_, context_ + 1);
}

std::vector<at::Tensor> TokenDataset::batch(std::span<const std::int64_t> indices,
                                            std::int64_t /*epoch*/) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  at::Tensor rows = at::empty({count, context_ + 1}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i)
    rows[i].copy_(tokens_.narrow(0, indices[static_cast<std::size_t>(i)] * context_, context_ + 1));
  if (tokens_.scalar_type() == at::kShort) rows.bitwise_and_(0xFFFF);
  return {rows.narrow(1, 0, context_), rows.narrow(1, 1, context_)};
}

}  // namespace paceline::data
