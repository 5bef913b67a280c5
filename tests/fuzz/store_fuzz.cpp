// Commands to the job's store, its replies, and the store that carries out the commands.

#include "paceline/engine/store/store_protocol.h"
#include "paceline/engine/store/store_service.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

template <class Message>
bool is_alike(const Message& message, std::span<const std::byte> body) {
  const auto frame = encode(message);
  return text_of(std::span<const std::byte>(frame).subspan(kFrameHeaderBytes)) == text_of(body);
}

// Serves frames one after the other, from two clients in turn.
void serve(std::span<const std::byte> bytes) {
  StoreService service(StoreLimits{});
  const auto now = AwakeClock::now();
  for (StoreService::Client client = 0; bytes.size() > kFrameHeaderBytes; client ^= 1) {
    const std::size_t length = frame_length(bytes.first(kFrameHeaderBytes));
    bytes = bytes.subspan(kFrameHeaderBytes);
    if (length > bytes.size()) return;
    const StoreRequest request = decode_request(bytes.first(length));
    require(is_alike(request, bytes.first(length)), "a request that was read is written alike");
    bytes = bytes.subspan(length);
    service.forget(client);
    service.handle(client, request, now);
    service.take_answers();
  }
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  if (take_byte(bytes) == 0) {
    const StoreReply reply = decode_reply(bytes);
    require(is_alike(reply, bytes), "a reply that was read is written alike");
  } else {
    serve(bytes);
  }
}

}  // namespace paceline::fuzz
