#pragma once

// Messages on their way: out (with the object that they were made of, to whose memory they may
// refer) and in.
//
// A message to this worker itself keeps its object: only a ticket for it goes through the socket,
// and the handler sees the caller's object.
//
// Thread safety: const methods are safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "paceline/engine/rpc/message.h"

namespace paceline::rpc {

// Its address stands for the type within this process.
template <class T>
inline constexpr char kTypeTag = 0;

class Outgoing {
 public:
  virtual ~Outgoing() = default;
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // The bytes. Empty if it goes to this worker itself.
  const MessageWriter& writer() const { return writer_; }
  bool is_for_self() const { return is_for_self_; }
  // The object, if it is a T.
  template <class T>
  const T* object() const {
    return type_ == &kTypeTag<T> ? static_cast<const T*>(object_) : nullptr;
  }
  // The bytes of one that is_for_self(), for a reader that takes another type.
  virtual MessageWriter write() const = 0;

 protected:
  Outgoing(const char* type, const void* object, bool is_for_self)
      : type_(type), object_(object), is_for_self_(is_for_self) {}
  MessageWriter writer_;

 private:
  const char* type_;
  const void* object_;
  bool is_for_self_;
};
using OutgoingPointer = std::shared_ptr<const Outgoing>;

template <Message T>
class OutgoingOf final : public Outgoing {
 public:
  OutgoingOf(T&& message, bool is_for_self)
      : Outgoing(&kTypeTag<T>, &message_, is_for_self), message_(std::move(message)) {
    if (is_for_self) return;
    writer_.reserve(kUsualBytes);
    write_field(writer_, message_);
  }
  MessageWriter write() const override { return write_message(message_); }

 private:
  static constexpr std::size_t kUsualBytes = 192;
  T message_;
};
template <Message T>
OutgoingPointer make_outgoing(T message, bool is_for_self = false) {
  return std::make_shared<const OutgoingOf<T>>(std::move(message), is_for_self);
}

// Bytes that are no message: lists of the session's frames, texts of errors.
class OutgoingBytes final : public Outgoing {
 public:
  OutgoingBytes() : Outgoing(nullptr, nullptr, false) {}
  explicit OutgoingBytes(std::string_view text) : OutgoingBytes() {
    writer_.put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  MessageWriter& to() { return writer_; }
  MessageWriter write() const override { return {}; }
};

// A message that has arrived. Its bytes lie at a multiple of MessageWriter::kAlignment.
class Payload {
 public:
  Payload() = default;
  explicit Payload(std::size_t size) : size_(size) {
    if (size > sizeof small_) large_ = std::make_unique_for_overwrite<Word[]>(size / 8 + 1);
  }
  explicit Payload(OutgoingPointer in_memory) : in_memory_(std::move(in_memory)) {}
  // Bytes of the other end (area.h), whose owner learns when they are read.
  Payload(std::shared_ptr<const std::byte> in_area, std::size_t size)
      : size_(size), in_area_(std::move(in_area)) {}

  // Requires: they are memory of its own.
  std::span<std::byte> bytes() {
    return {reinterpret_cast<std::byte*>(large_ ? large_.get() : small_.data()), size_};
  }
  std::span<const std::byte> bytes() const {
    if (in_area_) return {in_area_.get(), size_};
    return {reinterpret_cast<const std::byte*>(large_ ? large_.get() : small_.data()), size_};
  }
  std::string text() const {
    const auto all = bytes();
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }
  // From this worker itself: not bytes, but the object. Null otherwise.
  const OutgoingPointer& in_memory() const { return in_memory_; }
  OutgoingPointer& in_memory() { return in_memory_; }

 private:
  using Word = std::uint64_t;
  std::size_t size_ = 0;
  std::unique_ptr<Word[]> large_;
  OutgoingPointer in_memory_;
  std::shared_ptr<const std::byte> in_area_;
  std::array<Word, 16> small_{};
};

}  // namespace paceline::rpc
