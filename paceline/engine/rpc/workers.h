#pragma once

// Calls between the workers of a job: remote procedure calls on messages (message.h), and
// references to objects on other workers (remote_ref.h). docs/rpc.md has the promises.
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
// Workers come and go as they like; none is the first. A connection is made at the first call to a
// worker, and made again when it is lost. Every call ends, at the latest at its deadline: with its
// reply, or with a CallError that says whether it was executed (call_error.h).
//
// Handlers run on threads of the worker ("paceline-rpc"), several at a time. They may block, call
// others, call the caller back, and answer later.
//
// Thread safety: all of it. A child of fork() must not use its parent's Workers.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/rpc/call_error.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/engine/store/store.h"

namespace paceline::rpc {

class Workers;

struct JoinOptions {
  // Runs before other workers see this one: serves what they may call at once.
  std::function<void(Workers&)> prepare{};
  std::string role{};  // empty: that of the launcher (`paceline run --roles`), else "worker"
  // The job's. If they are not set, the launcher's (`paceline run`).
  std::shared_ptr<Store> store{};
  std::optional<Secret> secret{};
  std::string address{};  // for other hosts; empty: of the first interface that is not loopback
  std::string host{};     // a part of the host that counts as another one, as in LinkOptions
  bool encrypt = false;   // connections to other hosts; also PACELINE_ENCRYPT=1. All workers alike.
  std::chrono::milliseconds deadline = kDefaultDeadline;  // of calls that have none
  std::size_t max_message = std::size_t{256} << 20;       // bytes
  // Credit that this worker gives each other: calls under way, and bytes of their requests.
  std::size_t max_calls = 1024;
  std::size_t max_bytes = std::size_t{64} << 20;
  // Handlers that run at a time while none of them blocks; and threads in all.
  int num_threads = 2, max_threads = 64;
  // A worker that has not been heard of for so long has lost its references, and counts as lost.
  std::chrono::nanoseconds lease = kDefaultLease;
  std::chrono::milliseconds leave_timeout = std::chrono::seconds(5);
  // A thread that waits for a worker of this host looks for its message for so long before it
  // sleeps. That saves some microseconds of each call and costs a core.
  std::chrono::nanoseconds spin{};
};

class Workers {
 public:
  ~Workers();  // leaves
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  const std::string& name() const;

  // `handler(const Request&, rpc::Context&)` returns the reply; what it throws is the caller's
  // CallError. Or `handler(const Request&, rpc::Answer<Reply>)` answers later. Error(kInvalid) if
  // the method has a handler.
  template <class M, class F>
  void serve(F handler, const ServeOptions& options = {}) {
    serve(std::vector{
        Method{.name = std::string(M::kName),
               .handler = make_handler<typename M::Request, typename M::Reply>(std::move(handler)),
               .options = options}});
  }
  // Objects of the class may be created here. All its methods are served, or none.
  template <RemoteClass T>
  void serve(const ServeOptions& options = {}) {
    serve(methods_of<T>(options));
  }

  // Calls a method. It waits until its deadline for a worker that has not joined yet, and while the
  // callee's credit is used up. What spans of the request refer to
  // must live until the call has ended.
  template <class M>
  Future<typename M::Reply> call(const std::string& worker, typename M::Request request = {},
                                 const CallOptions& options = {}) {
    auto caller = caller_of(worker);
    auto call = begin_call(*caller, *references(), target_of<M>(), std::move(request),
                           deadline_of(options));
    return {std::move(caller), std::move(call), references()};
  }

  // As call(), one way: nothing comes back, not even that it failed. Executed at most once.
  // CallError at once if the callee's credit is used up.
  template <class M>
  void tell(const std::string& worker, typename M::Request request = {}) {
    tell_call(*caller_of(worker), *references(), target_of<M>(), std::move(request),
              deadline_of({}));
  }

  // Makes an object on a worker that serves its class. The reference can be used at once; if the
  // constructor fails, the calls behind it do. Error(kInvalid) if there is no such worker until the
  // deadline.
  template <RemoteClass T>
  RemoteRef<T> create(const std::string& worker, typename ArgumentsOf<T>::Type arguments = {},
                      const CallOptions& options = {}) {
    const Deadline deadline = deadline_of(options);
    const auto [caller, reference] = new_object(worker, deadline);
    CallTarget target = own_target<T>(kCreateName, Effect::kOnce);
    target.object = reference->id.number;
    reference->creation =
        begin_call(*caller, *references(), target, std::move(arguments), deadline);
    return {reference, default_deadline()};
  }

  // All workers that have joined so far, with their states.
  std::vector<WorkerInfo> list() const;
  // Calls `seen` for each worker there is, and for each that comes, leaves or is lost, within about
  // a second, on a thread of this worker, one at a time. Replaces the one that was given before.
  void watch(std::function<void(const WorkerInfo&)> seen);

  // Serves until a worker that has joined, or joins meanwhile, has left or is lost; true then.
  bool wait_until_gone(const std::string& worker,
                       std::chrono::milliseconds timeout = std::chrono::milliseconds::max());

  // Says goodbye. Calls under way end. Handlers are asked to stop (Context::is_cancelled()) and
  // waited for until JoinOptions::leave_timeout; one that still runs then goes on without a caller.
  // May be called by a handler, which is not waited for; so may the destructor.
  void leave();

 private:
  friend std::unique_ptr<Workers> join(const std::string& name, const JoinOptions& options);
  struct Impl;
  explicit Workers(std::shared_ptr<Impl> impl);

  void serve(std::vector<Method> methods);
  std::shared_ptr<Caller> caller_of(const std::string& worker) const;
  std::pair<std::shared_ptr<Caller>, HandlePointer> new_object(const std::string& worker,
                                                               Deadline deadline) const;
  const std::shared_ptr<ReferenceTable>& references() const;
  std::chrono::milliseconds default_deadline() const;
  Deadline deadline_of(const CallOptions& options) const {
    return Deadline::after(options.deadline.value_or(default_deadline()));
  }

  std::shared_ptr<Impl> impl_;
};

// Becomes a worker of the job. Error(kInvalid) for a name that is empty, has more than 128
// characters or control characters, or belongs to a worker that is present; errors of the store.
std::unique_ptr<Workers> join(const std::string& name, const JoinOptions& options = {});
// Named after the role and this rank's number in it, "trainer0". Without the launcher's roles, or
// with another role in `options`, the number is the rank: "worker3". Error(kInvalid) also where no
// launcher says which rank this is.
std::unique_ptr<Workers> join(const JoinOptions& options = {});

}  // namespace paceline::rpc
