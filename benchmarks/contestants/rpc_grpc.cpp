// gRPC without protobuf: a generic method whose messages are buffers. The callee serves its
// completion queue with two threads; the caller waits on its own completion queue, as gRPC's
// blocking stubs do.

#include <chrono>
#include <memory>

#include <fmt/format.h>
#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"

#include "apps/bench/contestant/call_contestant.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;

constexpr int kThreads = 2, kReady = 64;
constexpr const char* kMethod = "/bench/Take";

std::string target_of(const CallPlace& place) {
  return place.uses_tcp ? to_string(place.tcp) : "unix-abstract:" + place.unix_name;
}

// The header of a message.
CallHead head_of_buffer(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.TrySingleSlice(&slice).ok() && !buffer.DumpToSingleSlice(&slice).ok()) return {};
  return head_of({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
}

grpc::ByteBuffer buffer_of(std::size_t bytes) {
  const std::string text(bytes, '\1');
  const grpc::Slice slice(text.data(), text.size());
  return {&slice, 1};
}

class Callee {
 public:
  explicit Callee(const CallPlace& place) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target_of(place), grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    check(server_ != nullptr, "gRPC cannot listen at {}", target_of(place));
    for (int i = 0; i < kReady; ++i) (new Call(*this))->await();
    for (int i = 0; i < kThreads; ++i)
      threads_.push_back(start_thread("server", [this] { serve(); }));
  }
  ~Callee() {
    server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
  }

 private:
  // One call at the callee. The object's address is the call's tag in the completion queue. The
  // object deletes itself.
  class Call {
   public:
    explicit Call(Callee& callee) : callee_(callee) {}
    void await() {
      callee_.service_.RequestCall(&context_, &stream_, callee_.queue_.get(), callee_.queue_.get(),
                                   this);
    }
    void go_on(bool ok) {
      switch (ok ? state_ : State::kEnded) {
        case State::kAwaited:
          (new Call(callee_))->await();
          state_ = State::kRead;
          return stream_.Read(&request_, this);
        case State::kRead:
          head_ = head_of_buffer(request_);
          state_ = State::kSlept;
          if (head_.slow_ms == 0) return go_on(true);
          return alarm_.Set(
              callee_.queue_.get(),
              std::chrono::system_clock::now() + std::chrono::milliseconds(head_.slow_ms), this);
        case State::kSlept:
          state_ = State::kEnded;
          return stream_.WriteAndFinish(buffer_of(head_.reply_bytes), {}, grpc::Status::OK, this);
        case State::kEnded:
          delete this;
      }
    }

   private:
    enum class State { kAwaited, kRead, kSlept, kEnded };
    Callee& callee_;
    State state_ = State::kAwaited;
    grpc::GenericServerContext context_;
    grpc::GenericServerAsyncReaderWriter stream_{&context_};
    grpc::ByteBuffer request_;
    CallHead head_;
    grpc::Alarm alarm_;
  };

  void serve() {
    void* tag = nullptr;
    for (bool ok = false; queue_->Next(&tag, &ok);) static_cast<Call*>(tag)->go_on(ok);
  }

  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::jthread> threads_;
};

// One call at the caller.
class Sent {
 public:
  Sent(grpc::GenericStub& stub, const grpc::ByteBuffer& request, grpc::CompletionQueue& queue)
      : reader_(stub.PrepareUnaryCall(&context_, kMethod, request, &queue)) {
    reader_->StartCall();
    reader_->Finish(&reply_, &status_, this);
  }
  void check_reply(std::span<const std::byte> request) const {
    if (!status_.ok()) fail(ErrorCode::kPeerLost, "gRPC: {}", status_.error_message());
    bench::check_reply(request, reply_.Length());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer reply_;
  grpc::Status status_;
};

class GrpcCalls : public CallContestant {
 public:
  explicit GrpcCalls(const CallPlace& place) : way_(way_of(place)) {
    if (!place.is_caller) {
      callee_ = std::make_unique<Callee>(place);
      return;
    }
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    const auto channel =
        grpc::CreateCustomChannel(target_of(place), grpc::InsecureChannelCredentials(), arguments);
    check(channel->WaitForConnected(std::chrono::system_clock::now() + 60s),
          "gRPC cannot reach the callee");
    stub_ = std::make_unique<grpc::GenericStub>(channel);
  }

  std::string version() const override { return fmt::format("gRPC {}, {}", grpc::Version(), way_); }
  std::string lacks(const CallTurn& turn) const override {
    return turn.form == CallTurn::Form::kOneWay ? "has no one-way calls" : "";
  }

  void call(std::span<const std::byte> request) override {
    thread_local grpc::CompletionQueue queue;
    const Sent sent(*stub_, buffer_of(request), queue);
    next(queue);
    sent.check_reply(request);
  }

  std::uint64_t pipeline(const CallLoad& load) override {
    grpc::CompletionQueue queue;
    const grpc::ByteBuffer request = buffer_of(load.request());
    std::uint64_t done = 0;
    int under_way = 0;
    while (load.goes_on() || under_way > 0) {
      while (load.goes_on() && under_way < load.turn().width) {
        new Sent(*stub_, request, queue);  // deleted below
        ++under_way;
      }
      if (under_way == 0) break;
      const std::unique_ptr<Sent> ended(next(queue));
      ended->check_reply(load.request());
      --under_way;
      ++done;
    }
    return done;
  }

 private:
  static grpc::ByteBuffer buffer_of(std::span<const std::byte> request) {
    // The request does not change in the meantime, so it is not copied.
    const grpc::Slice slice(const_cast<std::byte*>(request.data()), request.size(),
                            grpc::Slice::STATIC_SLICE);
    return {&slice, 1};
  }
  static Sent* next(grpc::CompletionQueue& queue) {
    void* tag = nullptr;
    bool ok = false;
    check(queue.Next(&tag, &ok), "gRPC's completion queue has ended");
    return static_cast<Sent*>(tag);
  }

  const std::string way_;
  std::unique_ptr<Callee> callee_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_call_worker(argc, argv, [](const paceline::bench::CallPlace& place) {
    return std::make_unique<paceline::bench::GrpcCalls>(place);
  });
}
