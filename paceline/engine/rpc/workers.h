#pragma once

// Calls between the workers of a job: remote procedure calls on messages (message.h), and
// references to objects on other workers (remote_ref.h). docs/rpc.md has the guarantees.
//
//   struct Add {
//     static constexpr std::string_view kName = "add";
//     static constexpr rpc::Effect kEffect = rpc::Effect::kRepeatable;  // default: kAtMostOnce
//     struct Request {
//       int a = 0, b = 0;
//       static auto fields(auto& m) { return std::tie(m.a, m.b); }
//     };
//     struct Reply {
//       int sum = 0;
//       static auto fields(auto& m) { return std::tie(m.sum); }
//     };
//   };
//
//   auto workers = rpc::join("adder0", {.prepare = [](rpc::Workers& self) {
//     self.serve<Add>([](const Add::Request& request, rpc::Context&) {
//       return Add::Reply{request.a + request.b};
//     });
//   }});
//   workers->wait_until_gone("trainer");
//   // on worker "trainer":
//   int five = workers->call<Add>("adder0", {2, 3}).get().sum;
//
// Workers may join and leave at any time, and none is special. A connection is made at the first
// call to a worker, and made again when it is lost. Every call ends by its deadline: with its
// reply, or with a CallError that says whether the call was executed (call_error.h).
//
// Handlers run on threads of the worker ("paceline-rpc"), several at a time. They may block, call
// other workers, call the caller back, and answer later.
//
// Thread safety: every method may be called from any thread. A forked child must not use its
// parent's Workers.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/rpc/call_error.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/engine/rpc/worker_info.h"
#include "paceline/engine/store/store.h"

namespace paceline::rpc {

class Workers;

struct JoinOptions {
  // Runs before other workers see this one; use it to serve methods that they may call immediately.
  std::function<void(Workers&)> prepare{};
  std::string
      role{};  // empty: the role that the launcher sets (`paceline run --roles`), or "worker"
  // The store and the secret of the job; by default those of the launcher (`paceline run`).
  std::shared_ptr<Store> store{};
  std::optional<Secret> secret{};
  // The address of this worker for other hosts. Empty: the address from which this host reaches the
  // launcher's store or, if that is loopback, that of the first interface that is not loopback.
  std::string address{};
  std::string host{};    // a part of the host that counts as a host of its own, as in LinkOptions
  bool encrypt = false;  // connections to other hosts (or PACELINE_ENCRYPT=1); equal on all workers
  std::chrono::milliseconds deadline = detail::kDefaultDeadline;  // for calls without one
  std::size_t max_message = std::size_t{256} << 20;               // bytes
  // The credit that this worker gives to each other worker: calls under way, and bytes of their
  // requests.
  std::size_t max_calls = 1024;
  std::size_t max_bytes = std::size_t{64} << 20;
  // The number of handlers that usually run at a time, not counting handlers that block, and the
  // largest number of threads.
  int num_threads = 2, max_threads = 64;
  // A worker that has been silent for this time has lost its references, and counts as lost.
  // Workers check each other at most ten times a second, so use at least 400 ms.
  std::chrono::nanoseconds lease = std::chrono::seconds(10);
  std::chrono::milliseconds leave_timeout = std::chrono::seconds(5);
  // How long a thread that waits for a message from a worker of this host polls before it sleeps.
  // Polling saves some microseconds per call and costs a core, unless both threads are on one core,
  // which they then yield to each other. 0: polls for 50 microseconds, while that helps.
  std::chrono::nanoseconds spin{};
};

class Workers {
 public:
  ~Workers();  // leaves
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  const std::string& name() const;
  // The store of the job, in which the workers find each other.
  const std::shared_ptr<Store>& store() const;

  // Serves a method. `handler(const Request&, rpc::Context&)` returns the reply, and its exceptions
  // become the caller's CallError; `handler(const Request&, rpc::Answer<Reply>)` answers later.
  // Throws Error(kInvalid) if the method already has a handler.
  template <class M, class F>
  void serve(F handler, const ServeOptions& options = {}) {
    serve(std::vector{detail::Method{
        .name = std::string(M::kName),
        .handler = detail::make_handler<typename M::Request, typename M::Reply>(std::move(handler)),
        .options = options}});
  }
  // Lets other workers create objects of the class on this worker. Serves all methods, or none.
  template <RemoteClass T>
  void serve(const ServeOptions& options = {}) {
    serve(detail::methods_of<T>(options));
  }

  // As above; `make(const Arguments&, rpc::Context&)` makes each object, as a std::shared_ptr<T>.
  template <RemoteClass T>
  void serve_made_by(MakeObject<T> make, const ServeOptions& options = {}) {
    serve(detail::methods_of<T>(options, make));
  }

  // Calls a method. The call waits, at most until its deadline, for a worker that has not joined
  // yet, and while the callee's credit is used up. Memory to which spans of the request refer must
  // live until the call has ended; tell(), create() and replies copy it.
  template <class M>
  Future<typename M::Reply> call(const std::string& worker, typename M::Request request = {},
                                 const CallOptions& options = {}) {
    return begin(worker, detail::target_of<M>(),
                 detail::RequestMaker(request, detail::LargeSpans::kInPlace), options);
  }

  // Sends a one-way message: there is no reply, not even for a failure. The handler runs at most
  // once. Throws CallError immediately if the callee's credit is used up.
  template <class M>
  void tell(const std::string& worker, typename M::Request request = {}) {
    send(worker, detail::target_of<M>(), detail::RequestMaker(request));
  }

  // Makes an object on a worker that serves its class. The reference can be used immediately; if
  // the constructor fails, the calls after it fail as well. Throws Error(kInvalid) if the worker
  // has left or is lost, or has not joined by the deadline.
  template <RemoteClass T>
  RemoteRef<T> create(const std::string& worker,
                      typename detail::ArgumentsOf<T>::Type arguments = {},
                      const CallOptions& options = {}) {
    return {begin_create(worker, detail::own_target<T>(detail::kCreateName, Effect::kOnce),
                         detail::RequestMaker(arguments), options),
            default_deadline()};
  }

  // All workers that have joined so far, with their states.
  std::vector<WorkerInfo> list() const;
  // Calls `seen` for each worker that has joined so far, and again for each worker that joins,
  // leaves or is lost, within about a second. The calls come one at a time, on a thread of this
  // worker. Replaces the function of an earlier watch().
  void watch(std::function<void(const WorkerInfo&)> seen);

  // Waits until a worker has left or is lost; a worker that has not joined yet must first join.
  // Returns false at the timeout. Throws Error(kInvalid) if the function of watch() calls this.
  bool wait_until_gone(const std::string& worker,
                       std::chrono::milliseconds timeout = std::chrono::milliseconds::max());

  // Leaves the job. Calls under way end. Handlers are asked to stop (Context::is_cancelled()), and
  // leave() waits for them for at most JoinOptions::leave_timeout; a handler that still runs then
  // continues without a caller. A handler may call leave(), which then does not wait for that
  // handler; the same holds for the destructor.
  void leave();

 private:
  friend std::unique_ptr<Workers> join(const std::string& name, const JoinOptions& options);
  struct Impl;
  explicit Workers(std::shared_ptr<Impl> impl);

  void serve(std::vector<detail::Method> methods);
  detail::FutureReply begin(const std::string& worker, const detail::CallTarget& target,
                            detail::RequestMaker request, const CallOptions& options) const;
  void send(const std::string& worker, const detail::CallTarget& target,
            detail::RequestMaker request) const;
  detail::HandlePointer begin_create(const std::string& worker, detail::CallTarget target,
                                     detail::RequestMaker arguments,
                                     const CallOptions& options) const;
  std::chrono::milliseconds default_deadline() const;

  std::shared_ptr<Impl> impl_;
};

// Makes this process a worker of the job. Throws Error(kInvalid) for a name that is empty, has more
// than 128 characters or control characters, or belongs to a worker that is present; also throws
// errors of the store.
std::unique_ptr<Workers> join(const std::string& name, const JoinOptions& options = {});
// As above, under the name ROLE + number, such as "trainer0". The number is the rank's number
// within the launcher's role; if the launcher sets no role, or `options` names a different one, it
// is the rank ("worker3"). Also throws Error(kInvalid) when no launcher sets the rank of this
// process.
std::unique_ptr<Workers> join(const JoinOptions& options = {});

}  // namespace paceline::rpc
