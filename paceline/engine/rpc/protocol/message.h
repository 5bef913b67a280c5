#pragma once

// Messages: structs with a list of fields, which are written as bytes and read back.
//
//   struct PullRequest {
//     std::string table;
//     std::vector<std::int64_t> ids;
//     static auto fields(auto& self) { return std::tie(self.table, self.ids); }
//   };
//
// A field is a number, a bool, an enum, text, a std::vector, std::array or std::optional of fields,
// another message, or a std::span or std::string_view of constant data. The elements of large spans
// of a request must live until the call has ended. At the receiver a span or view refers to the
// bytes of the message, so it must not outlive them.
//
// Fields are identified by their position, and each carries its kind. A field may be added at the
// end of a message: an older reader skips it, and a newer reader of an older message keeps the
// default value. A field of another kind gives an Error(kCorrupt) that names the field.
//
// Nothing in a message is executed. The reader checks every length against the bytes that are left
// before it allocates memory, and stops at kMaxMessageDepth.
//
// Thread safety: none for one object; distinct objects are independent.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "paceline/engine/core/error.h"

namespace paceline::rpc {

template <class T>
concept Message = requires(T& message) { T::fields(message); };

class ReferenceHandle;
class ReferenceTable;

namespace detail {

// The deepest nesting of messages, lists and optional fields, counted together.
inline constexpr int kMaxMessageDepth = 32;
inline constexpr std::size_t kMaxMessageBytes = 0xffff'ffff;

// The kind of a field, as it is sent; never change these values. All numbers are little-endian.
enum class FieldKind : std::uint8_t {
  kBool = 1,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat32,
  kFloat64,
  kText,
  kList,
  kOptional,
  kMessage,
};
// "int64", "list", ...; "unknown kind 77" for a number that no build of Paceline sends.
std::string to_string(FieldKind kind);

// Writes the bytes of a message. It refers to large lists of numbers instead of copying them.
class MessageWriter {
 public:
  // A list of numbers of at least this many bytes is not copied into bytes().
  static constexpr std::size_t kLargeSpan = 32 << 10;
  // The data of lists of numbers begin at a multiple of this, from the beginning of the message.
  static constexpr std::size_t kAlignment = 8;

  struct Part {
    std::size_t offset = 0;  // the data belong before this offset of bytes()
    std::span<const std::byte> data;
  };

  void put(FieldKind kind) { put_number(static_cast<std::uint8_t>(kind)); }
  template <class T>
    requires std::is_arithmetic_v<T>
  void put_number(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(T), &value, sizeof(T));
    size_ += sizeof(T);
  }
  // Throws Error(kInvalid) for more than kMaxMessageBytes.
  void put_count(std::size_t count);
  void put_bytes(std::span<const std::byte> data);
  // Puts bytes at a multiple of kAlignment. `data` must live until the message has been sent or
  // own_parts() is called.
  void put_aligned(std::span<const std::byte> data);
  // Keeps `owner` alive as long as this writer, for bytes that the message refers to but does not
  // own.
  void keep(std::shared_ptr<const void> owner);

  // A length that end_length() fills in: the number of bytes written since begin_length().
  struct Length {
    std::size_t place = 0;  // where the length is stored in bytes()
    std::size_t begin = 0;  // size() at the beginning of the counted bytes
  };
  Length begin_length();
  void end_length(const Length& length);

  // Enters one more level of nesting. Throws Error(kInvalid) beyond kMaxMessageDepth.
  void enter();
  void leave() { --depth_; }

  // Records that a field is a reference (remote_ref.h).
  void refer(std::shared_ptr<ReferenceHandle> reference);
  const std::vector<std::shared_ptr<ReferenceHandle>>& references() const { return references_; }

  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  // The number of bytes, including all parts.
  std::size_t size() const { return size_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<Part>& parts() const { return parts_; }
  // Copies the parts into bytes().
  void own_parts();
  // Copies all bytes to contiguous memory. Requires: `to` has room for size() bytes.
  void copy_to(std::byte* to) const;
  std::vector<std::byte> copy() const;

 private:
  std::vector<std::byte> bytes_;
  std::vector<Part> parts_;
  std::vector<std::shared_ptr<const void>> owners_;
  std::vector<std::shared_ptr<ReferenceHandle>> references_;
  std::size_t size_ = 0;
  int depth_ = 0;
};

// Reads the bytes of a message, which may come from a program of another version.
class MessageReader {
 public:
  // Requires: `bytes` begin at a multiple of MessageWriter::kAlignment. `table` takes the
  // references among the fields; without a table they are an error.
  explicit MessageReader(std::span<const std::byte> bytes, ReferenceTable* table = nullptr)
      : all_(bytes), end_(bytes.size()), table_(table) {}

  std::size_t remaining() const { return end_ - next_; }
  template <class T>
    requires std::is_arithmetic_v<T>
  T get_number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take(std::size_t count);
  // Like take(), for bytes that put_aligned() wrote.
  std::span<const std::byte> take_aligned(std::size_t count);
  // The number of elements that follow, each of at least `least` bytes. Throws Error(kCorrupt) if
  // too few bytes are left.
  std::size_t get_count(std::size_t least);
  // Throws Error(kCorrupt) unless the next byte is `kind`.
  void expect(FieldKind kind);

  // Reads the length of a nested message and confines the reader to that message. Returns the outer
  // end for leave_message(), which skips the remaining fields, those of a newer version.
  std::size_t enter_message();
  void leave_message(std::size_t outer_end);
  void enter();
  void leave() { --depth_; }
  // Sets the number of the field that is read next, from 1, for error messages.
  void at_field(int number) { path_[static_cast<std::size_t>(depth_)] = number; }

  ReferenceTable* table() const { return table_; }
  void received(std::shared_ptr<ReferenceHandle> reference);
  const std::vector<std::shared_ptr<ReferenceHandle>>& references() const { return references_; }

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const std::span<const std::byte> all_;
  std::size_t next_ = 0, end_;
  ReferenceTable* const table_;
  std::vector<std::shared_ptr<ReferenceHandle>> references_;
  int depth_ = 0;
  std::array<int, kMaxMessageDepth + 1> path_{};
};

// How a type is written and read: its kind, the fewest bytes that follow its kind, and the
// functions for both directions. A specialisation makes the type usable as a field.
template <class T>
struct FieldCodec;

template <class T>
void write_field(MessageWriter& out, const T& value) {
  out.put(FieldCodec<T>::kKind);
  FieldCodec<T>::write(out, value);
}
template <class T>
void read_field(MessageReader& in, T& value) {
  in.expect(FieldCodec<T>::kKind);
  FieldCodec<T>::read(in, value);
}

// Write and read a whole message. write_message() throws Error(kInvalid) for a message that is too
// large or too deep; read_message() throws Error(kCorrupt) for bytes that are not such a message.
template <Message T>
MessageWriter write_message(const T& message) {
  MessageWriter out;
  write_field(out, message);
  return out;
}
template <Message T>
T read_message(MessageReader& in) {
  T message{};
  read_field(in, message);
  if (in.remaining() != 0) in.refuse("bytes follow its end");
  return message;
}
template <Message T>
T read_message(std::span<const std::byte> bytes) {
  MessageReader in(bytes);
  return read_message<T>(in);
}

// ---- fields that refer to memory of the program ----

template <class T>
inline constexpr bool kIsView = std::same_as<T, std::string_view>;
template <class T>
inline constexpr bool kIsView<std::span<const T>> = true;

// Whether a T is a span or a view, or contains one. `Outer`: the messages that contain the T.
template <class T, class... Outer>
consteval bool has_views() {
  if constexpr (kIsView<T>) {
    return true;
  } else if constexpr ((std::same_as<T, Outer> || ...)) {  // NOLINT(bugprone-branch-clone)
    return false;
  } else if constexpr (Message<T>) {
    return []<class... Field>(std::type_identity<std::tuple<Field&...>>) {
      return (has_views<Field, T, Outer...>() || ...);
    }(std::type_identity<decltype(T::fields(std::declval<T&>()))>());
  } else if constexpr (requires { typename T::value_type; }) {
    return has_views<typename T::value_type, Outer...>();
  } else {
    return false;
  }
}

// ---- the types of fields ----

template <class T>
consteval FieldKind number_kind() {
  using enum FieldKind;
  if constexpr (std::is_enum_v<T>) {
    return number_kind<std::underlying_type_t<T>>();
  } else if constexpr (std::same_as<T, bool>) {
    return kBool;
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "only float and double can be sent");
    return sizeof(T) == 4 ? kFloat32 : kFloat64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1 ? kInt8 : sizeof(T) == 2 ? kInt16 : sizeof(T) == 4 ? kInt32 : kInt64;
  } else {
    return sizeof(T) == 1 ? kUint8 : sizeof(T) == 2 ? kUint16 : sizeof(T) == 4 ? kUint32 : kUint64;
  }
}

template <class T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;
// Numbers for which all bit patterns are valid, so that a list of them can be copied as a whole.
template <class T>
concept PlainNumber = Number<T> && !std::same_as<T, bool>;

template <Number T>
struct FieldCodec<T> {
  static constexpr FieldKind kKind = number_kind<T>();
  static constexpr std::size_t kMinBytes = sizeof(T);
  static void write(MessageWriter& out, T value) {
    if constexpr (std::is_enum_v<T>) {
      out.put_number(static_cast<std::underlying_type_t<T>>(value));
    } else {
      out.put_number(value);
    }
  }
  static void read(MessageReader& in, T& value) {
    if constexpr (std::same_as<T, bool>) {
      const auto byte = in.get_number<std::uint8_t>();
      if (byte > 1) in.refuse("a bool is neither 0 nor 1");
      value = byte == 1;
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(in.get_number<std::underlying_type_t<T>>());
    } else {
      value = in.get_number<T>();
    }
  }
};

template <class T>
  requires std::same_as<T, std::string> || std::same_as<T, std::string_view>
struct FieldCodec<T> {
  static constexpr FieldKind kKind = FieldKind::kText;
  static constexpr std::size_t kMinBytes = 4;
  static void write(MessageWriter& out, const T& text) {
    out.put_count(text.size());
    out.put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  static void read(MessageReader& in, T& text) {
    const auto bytes = in.take(in.get_count(1));
    text = T(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
};

// The common part of all lists: the kind of the elements, their number, and the elements.
template <class T>
struct ElementCodec {
  static void write(MessageWriter& out, std::span<const T> values) {
    out.put(FieldCodec<T>::kKind);
    out.put_count(values.size());
    if constexpr (PlainNumber<T>) {
      out.put_aligned(std::as_bytes(values));
    } else {
      out.enter();
      for (const T& value : values) FieldCodec<T>::write(out, value);
      out.leave();
    }
  }
  static std::size_t read_count(MessageReader& in) {
    in.expect(FieldCodec<T>::kKind);
    return in.get_count(FieldCodec<T>::kMinBytes);
  }
  // Requires: T is a PlainNumber.
  static std::span<const T> read_in_place(MessageReader& in) {
    const std::size_t count = read_count(in);
    const auto bytes = in.take_aligned(count * sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), count};
  }
  // `next(i)` returns a reference to element i.
  template <class Next>
  static void read_each(MessageReader& in, std::size_t count, Next next) {
    in.enter();
    for (std::size_t i = 0; i < count; ++i) {
      in.at_field(static_cast<int>(i + 1));
      FieldCodec<T>::read(in, next(i));
    }
    in.leave();
  }
};

template <class T>
struct FieldCodec<std::vector<T>> {
  static_assert(!std::same_as<T, bool>, "use std::vector<std::uint8_t>");
  static constexpr FieldKind kKind = FieldKind::kList;
  static constexpr std::size_t kMinBytes = 5;
  static void write(MessageWriter& out, const std::vector<T>& values) {
    ElementCodec<T>::write(out, values);
  }
  static void read(MessageReader& in, std::vector<T>& values) {
    if constexpr (PlainNumber<T>) {
      const auto there = ElementCodec<T>::read_in_place(in);
      values.assign(there.begin(), there.end());
    } else {
      const std::size_t count = ElementCodec<T>::read_count(in);
      values.clear();  // grows with the elements read, as the count is untrusted
      ElementCodec<T>::read_each(in, count,
                                 [&](std::size_t) -> T& { return values.emplace_back(); });
    }
  }
};

template <class T>
struct FieldCodec<std::span<const T>> {
  static_assert(PlainNumber<T>, "a span must consist of numbers");
  static constexpr FieldKind kKind = FieldKind::kList;
  static constexpr std::size_t kMinBytes = 5;
  static void write(MessageWriter& out, std::span<const T> values) {
    ElementCodec<T>::write(out, values);
  }
  static void read(MessageReader& in, std::span<const T>& values) {
    values = ElementCodec<T>::read_in_place(in);
  }
};

template <class T, std::size_t N>
struct FieldCodec<std::array<T, N>> {
  static constexpr FieldKind kKind = FieldKind::kList;
  static constexpr std::size_t kMinBytes = 5;
  static void write(MessageWriter& out, const std::array<T, N>& values) {
    ElementCodec<T>::write(out, values);
  }
  static void read(MessageReader& in, std::array<T, N>& values) {
    const std::size_t count = ElementCodec<T>::read_count(in);
    if (count != N) {
      in.refuse("a list has " + std::to_string(count) + " elements and not " + std::to_string(N));
    }
    if constexpr (PlainNumber<T>) {
      const auto bytes = in.take_aligned(N * sizeof(T));
      if constexpr (N > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      ElementCodec<T>::read_each(in, N, [&](std::size_t i) -> T& { return values[i]; });
    }
  }
};

template <class T>
struct FieldCodec<std::optional<T>> {
  static constexpr FieldKind kKind = FieldKind::kOptional;
  static constexpr std::size_t kMinBytes = 2;
  static void write(MessageWriter& out, const std::optional<T>& value) {
    out.put(FieldCodec<T>::kKind);
    out.put_number(static_cast<std::uint8_t>(value.has_value()));
    if (!value) return;
    out.enter();
    FieldCodec<T>::write(out, *value);
    out.leave();
  }
  static void read(MessageReader& in, std::optional<T>& value) {
    in.expect(FieldCodec<T>::kKind);
    bool has_value = false;
    FieldCodec<bool>::read(in, has_value);
    value.reset();
    if (!has_value) return;
    in.enter();
    FieldCodec<T>::read(in, value.emplace());
    in.leave();
  }
};

template <Message T>
struct FieldCodec<T> {
  static constexpr FieldKind kKind = FieldKind::kMessage;
  static constexpr std::size_t kMinBytes = 4;
  static void write(MessageWriter& out, const T& message) {
    out.enter();
    const auto length = out.begin_length();
    std::apply([&](const auto&... field) { (write_field(out, field), ...); }, T::fields(message));
    out.end_length(length);
    out.leave();
  }
  static void read(MessageReader& in, T& message) {
    in.enter();
    const std::size_t outer_end = in.enter_message();
    int number = 0;
    std::apply([&](auto&... field) { (..., read_if_sent(in, ++number, field)); },
               T::fields(message));
    in.leave_message(outer_end);
    in.leave();
  }

 private:
  // Reads a field, unless the message has ended: an older version lacks newer fields.
  template <class Field>
  static void read_if_sent(MessageReader& in, int number, Field& field) {
    if (in.remaining() == 0) return;
    in.at_field(number);
    read_field(in, field);
  }
};

}  // namespace detail

}  // namespace paceline::rpc
