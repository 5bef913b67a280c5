#pragma once

// The words between TcpStore and TcpStoreServer, after the handshake of engine/core/handshake.h
// with context "store". Byte level in docs/formats/store.md. One shape serves every command: a
// frame is a u32 length and that many bytes; a client sends one request and reads one reply.
// Nothing is allocated before its length was checked.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

inline constexpr char kStoreContext[] = "store";
inline constexpr std::size_t kFrameHeaderBytes = 4;
// Of a frame's body, in both directions: a value of the greatest size fits with room to spare.
inline constexpr std::size_t kMaxFrameBytes = 16 << 20;

StoreReply error_reply(const Error& error);

// With the length in front. Error(kInvalid) when the body would be over kMaxFrameBytes.
std::vector<std::byte> encode(const StoreRequest& request);
std::vector<std::byte> encode(const StoreReply& reply);

// Without the length. Error(kCorrupt) when the bytes are not exactly one message with the fields
// that its command takes.
StoreRequest decode_request(std::span<const std::byte> body);
StoreReply decode_reply(std::span<const std::byte> body);

// The length in a frame's header. Error(kCorrupt) when it is 0 or above kMaxFrameBytes.
std::size_t frame_length(std::span<const std::byte> header);

}  // namespace paceline
