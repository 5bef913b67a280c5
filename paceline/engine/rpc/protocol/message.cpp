#include "paceline/engine/rpc/protocol/message.h"

#include <algorithm>

#include "paceline/engine/core/check.h"

namespace paceline::rpc::detail {

namespace {

std::size_t padding_before(std::size_t offset) {
  return (MessageWriter::kAlignment - offset % MessageWriter::kAlignment) %
         MessageWriter::kAlignment;
}

}  // namespace

std::string to_string(FieldKind kind) {
  constexpr std::array kNames = {"bool",    "int8",   "int16",  "int32",    "int64",
                                 "uint8",   "uint16", "uint32", "uint64",   "float32",
                                 "float64", "text",   "list",   "optional", "message"};
  const auto number = static_cast<std::size_t>(kind);
  if (number == 0 || number > kNames.size()) return fmt::format("unknown kind {}", number);
  return kNames[number - 1];
}

void MessageWriter::put_count(std::size_t count) {
  check(count <= kMaxMessageBytes, "a list or text of {} elements is more than a message can have",
        count);
  put_number(static_cast<std::uint32_t>(count));
}

void MessageWriter::put_bytes(std::span<const std::byte> data) {
  bytes_.insert(bytes_.end(), data.begin(), data.end());
  size_ += data.size();
}

void MessageWriter::keep(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }

void MessageWriter::refer(std::shared_ptr<ReferenceHandle> reference) {
  references_.push_back(std::move(reference));
}

void MessageWriter::put_aligned(std::span<const std::byte> data) {
  const std::size_t padding = padding_before(size_);
  bytes_.insert(bytes_.end(), padding, std::byte{0});
  size_ += padding;
  if (data.size() < kLargeSpan) return put_bytes(data);
  parts_.push_back({bytes_.size(), data});
  size_ += data.size();
}

MessageWriter::Length MessageWriter::begin_length() {
  const std::size_t place = bytes_.size();
  put_number(std::uint32_t{0});
  return {place, size_};
}

void MessageWriter::end_length(const Length& length) {
  check(size_ <= kMaxMessageBytes, "a message of more than {} bytes cannot be sent",
        kMaxMessageBytes);
  const auto value = static_cast<std::uint32_t>(size_ - length.begin);
  std::memcpy(bytes_.data() + length.place, &value, sizeof value);
}

void MessageWriter::enter() {
  check(++depth_ <= kMaxMessageDepth, "a message has more than {} levels", kMaxMessageDepth);
}

void MessageWriter::own_parts() {
  if (parts_.empty()) return;
  bytes_ = copy();
  parts_.clear();
}

void MessageWriter::copy_to(std::byte* to) const {
  std::size_t copied = 0;
  const auto append = [&](std::span<const std::byte> data) {
    if (!data.empty()) std::memcpy(to, data.data(), data.size());
    to += data.size();
  };
  const std::span<const std::byte> bytes(bytes_);
  for (const Part& part : parts_) {
    append(bytes.subspan(copied, part.offset - copied));
    append(part.data);
    copied = part.offset;
  }
  append(bytes.subspan(copied));
}

std::vector<std::byte> MessageWriter::copy() const {
  std::vector<std::byte> all(size_);
  copy_to(all.data());
  return all;
}

void MessageReader::received(std::shared_ptr<ReferenceHandle> reference) {
  references_.push_back(std::move(reference));
}

std::span<const std::byte> MessageReader::take(std::size_t count) {
  if (count > remaining()) refuse("it ends too early");
  const auto bytes = all_.subspan(next_, count);
  next_ += count;
  return bytes;
}

std::span<const std::byte> MessageReader::take_aligned(std::size_t count) {
  take(padding_before(next_));
  return take(count);
}

std::size_t MessageReader::get_count(std::size_t least) {
  const std::size_t count = get_number<std::uint32_t>();
  if (count > remaining() / least) {
    refuse(fmt::format("it claims {} elements, but only {} bytes are left", count, remaining()));
  }
  return count;
}

void MessageReader::expect(FieldKind kind) {
  const auto there = static_cast<FieldKind>(get_number<std::uint8_t>());
  if (there == kind) return;
  refuse(fmt::format("this program expects {}, but the message has {}", to_string(kind),
                     to_string(there)));
}

std::size_t MessageReader::enter_message() {
  const std::size_t length = get_count(1);
  return std::exchange(end_, next_ + length);
}

void MessageReader::leave_message(std::size_t outer_end) {
  next_ = end_;
  end_ = outer_end;
}

void MessageReader::enter() {
  if (depth_ == kMaxMessageDepth) refuse(fmt::format("it has more than {} levels", depth_));
  path_[static_cast<std::size_t>(++depth_)] = 0;
}

void MessageReader::refuse(const std::string& why) const {
  std::string path;
  for (int level = 1; level <= depth_; ++level) {
    const int number = path_[static_cast<std::size_t>(level)];
    if (number > 0) path += fmt::format("{}{}", path.empty() ? "" : ".", number);
  }
  if (path.empty()) fail(ErrorCode::kCorrupt, "a message cannot be read: {}", why);
  fail(ErrorCode::kCorrupt, "field {} of a message cannot be read: {}", path, why);
}

}  // namespace paceline::rpc::detail
