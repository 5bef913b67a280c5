#pragma once

// Objects on other workers. A class whose objects other workers may use declares a name and the
// methods that they may call. The arguments and results of its constructor and methods are
// messages:
//
//   class Counter {
//    public:
//     static constexpr std::string_view kName = "counter";
//     using Arguments = Start;                       // for the constructor, if it takes any
//     explicit Counter(const Start& start);         // or (const Start&, rpc::Context&)
//     Total add(const Amount& amount);               // or (const Amount&, rpc::Context&)
//     static auto methods() {
//       return std::tuple(rpc::method<&Counter::add>("add", rpc::Effect::kOnce));
//     }
//   };
//
//   rpc::RemoteRef<Counter> counter = workers->create<Counter>("server1", {.value = 5});
//   counter.call<&Counter::add>({.amount = 2}).get();
//
// The calls to one object run one at a time, after its constructor, in the order in which they
// arrive; the calls of one worker arrive in the order in which it made them. So a reference can be
// used immediately, and an object needs no lock. (An object must not wait for a call to itself.)
//
// The object lives as long as a worker that renews its lease (JoinOptions::lease) has a reference
// to the object. A reference may be a field of any message; the sender's reference keeps the
// object alive until the receiver has its own.
//
// A method may keep a new object for its caller. The caller then holds the object as if the caller
// had created it:
//
//   auto [reply, cursor] = table.call_and_keep<&Table::open, Cursor>(request); // sets request.kept
//   // in Table::open(const Open& request, rpc::Context& context):
//   rpc::keep_object(context, request.kept, std::make_shared<Cursor>(...));
//
// Objects of a class without Arguments and without a default constructor can be made only in this
// way.

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "paceline/engine/rpc/calls.h"

namespace paceline::rpc {

namespace detail {

template <auto Function>
struct RemoteMethod {
  static constexpr auto kFunction = Function;
  std::string_view name;
  Effect effect = Effect::kAtMostOnce;
};

}  // namespace detail

// A method that other workers may call, for the class's methods(). On the wire and in errors, the
// class's name precedes `name`: "counter.add".
template <auto Function>
constexpr auto method(std::string_view name, Effect effect = Effect::kAtMostOnce) {
  return detail::RemoteMethod<Function>{name, effect};
}

template <class T>
concept RemoteClass = requires {
  { T::kName } -> std::convertible_to<std::string_view>;
  T::methods();
};

namespace detail {

template <class F>
struct MethodTypes;
template <class C, class Out, class In>
struct MethodTypes<Out (C::*)(In)> {
  using Request = std::remove_cvref_t<In>;
  using Reply = Out;
  static constexpr bool kHasContext = false;
};
template <class C, class Out, class In>
struct MethodTypes<Out (C::*)(In) const> : MethodTypes<Out (C::*)(In)> {};
template <class C, class Out, class In>
struct MethodTypes<Out (C::*)(In, Context&)> {
  using Request = std::remove_cvref_t<In>;
  using Reply = Out;
  static constexpr bool kHasContext = true;
};
template <class C, class Out, class In>
struct MethodTypes<Out (C::*)(In, Context&) const> : MethodTypes<Out (C::*)(In, Context&)> {};

template <class T>
struct ArgumentsOf {
  using Type = Nothing;
};
template <class T>
  requires requires { typename T::Arguments; }
struct ArgumentsOf<T> {
  using Type = typename T::Arguments;
};

// Whether other workers may create objects of the class. False for a class whose objects are made
// only by methods that keep a new object for the caller.
template <class T>
concept Creatable = requires { typename T::Arguments; } || std::default_initializable<T>;

inline constexpr std::string_view kCreateName = "create", kFetchName = "fetch";
// A method's name on the wire and in errors, such as "counter.add". The text is never destroyed.
std::string_view full_method_name(std::string_view class_name, std::string_view method);

// The call target of one of a class's methods.
template <RemoteClass T, auto Function>
const CallTarget& object_target() {
  static const CallTarget target = [] {
    CallTarget found;
    const auto look_at = [&]<auto Other>(const RemoteMethod<Other>& method) {
      if constexpr (std::is_same_v<decltype(Other), decltype(Function)>) {
        if (Other != Function) return;
        found.method = full_method_name(T::kName, method.name);
        found.effect = method.effect;
      }
    };
    std::apply([&](const auto&... each) { (look_at(each), ...); }, T::methods());
    found.method_number = method_id(found.method);
    found.scope = Scope::kThisSession;
    return found;
  }();
  return target;
}
template <RemoteClass T>
CallTarget own_target(std::string_view name, Effect effect) {
  const std::string_view full = full_method_name(T::kName, name);
  return {.method = full,
          .method_number = method_id(full),
          .effect = effect,
          .scope = Scope::kThisSession};
}

}  // namespace detail

// For handlers: the object of this worker with this number (RemoteRef::number()). Null if there is
// none, if its constructor has not ended, or if it belongs to another class than T.
template <RemoteClass T>
std::shared_ptr<T> find_object(const Context& context, ObjectNumber number) {
  return std::static_pointer_cast<T>(context.find_own(detail::method_id(T::kName), number));
}
// For a method that was called by call_and_keep(): keeps `object` for the caller, which then refers
// to it. Throws Error(kAborted) if the caller no longer waits, Error(kInvalid) for a number in use.
template <RemoteClass T>
void keep_object(Context& context, ObjectNumber number, std::shared_ptr<T> object) {
  context.keep_own(detail::method_id(T::kName), number, std::move(object));
}

namespace detail {

// A reference that all copies of a RemoteRef share. The functions below require a handle that is
// not null, unless stated otherwise.
using HandlePointer = std::shared_ptr<ReferenceHandle>;

const std::string& owner_of(const HandlePointer& handle);
ObjectNumber number_of(const HandlePointer& handle);
bool is_same_object(const HandlePointer& one, const HandlePointer& other);  // null: no object
// Write and read a reference as a field of a message; null refers to nothing.
void write_reference(MessageWriter& out, const HandlePointer& handle);
HandlePointer read_reference(MessageReader& in);

// Both functions below throw Error(kInvalid) for a null handle, or if this worker has left.

// Makes a reference to a new object that `method` is going to keep, on the worker that owns the
// object of `handle`.
HandlePointer new_reference_beside(const HandlePointer& handle, std::string_view method);
// Begins a call of a method of the object.
FutureReply begin_object_call(const HandlePointer& handle, CallTarget target, RequestMaker request,
                              std::chrono::milliseconds deadline);

}  // namespace detail

// A reference to an object of class T on some worker. Copies refer to the same object.
//
// Thread safety: const methods are safe, and distinct copies are independent.
template <class T>
class RemoteRef {
 public:
  RemoteRef() = default;  // refers to nothing
 public:                  // internal
  RemoteRef(detail::HandlePointer handle, std::chrono::milliseconds deadline)
      : handle_(std::move(handle)), deadline_(deadline) {}

 public:
  explicit operator bool() const { return handle_ != nullptr; }
  // The worker that owns the object. Requires: the reference is not empty.
  const std::string& owner() const { return detail::owner_of(handle_); }
  // The number with which the owner's handlers find the object. Requires: the reference is not
  // empty.
  ObjectNumber number() const { return detail::number_of(handle_); }

  // Calls a method of the object. Throws ReferenceError, now or from the Future, if this reference
  // can no longer be used.
  template <auto Function>
  Future<typename detail::MethodTypes<decltype(Function)>::Reply> call(
      typename detail::MethodTypes<decltype(Function)>::Request request = {},
      const CallOptions& options = {}) const {
    return begin<typename detail::MethodTypes<decltype(Function)>::Reply>(
        detail::object_target<T, Function>(), std::move(request), options);
  }
  // Like call(), for a method that keeps a `Kept` object for this worker (keep_object()); sets the
  // request's field `kept`. The returned reference can be used once the call has succeeded.
  template <auto Function, class Kept>
  auto call_and_keep(typename detail::MethodTypes<decltype(Function)>::Request request,
                     const CallOptions& options = {}) const {
    using Reply = typename detail::MethodTypes<decltype(Function)>::Reply;
    const detail::CallTarget& target = detail::object_target<T, Function>();
    const RemoteRef<Kept> kept(detail::new_reference_beside(handle_, target.method), deadline_);
    request.kept = kept.number();
    return std::pair<Future<Reply>, RemoteRef<Kept>>(
        begin<Reply>(target, std::move(request), options), kept);
  }
  // Fetches a copy of the object. Requires: its class is a Message.
  Future<T> fetch(const CallOptions& options = {}) const
    requires Message<T>
  {
    return begin<T>(detail::own_target<T>(detail::kFetchName, Effect::kRepeatable), Nothing{},
                    options);
  }

  bool operator==(const RemoteRef& other) const {
    return detail::is_same_object(handle_, other.handle_);
  }

 private:
  template <class Other>
  friend struct detail::FieldCodec;

  template <class Reply, class Request>
  Future<Reply> begin(const detail::CallTarget& target, Request request,
                      const CallOptions& options) const {
    return detail::begin_object_call(handle_, target,
                                     detail::RequestMaker(request, detail::LargeSpans::kInPlace),
                                     options.deadline.value_or(deadline_));
  }

  detail::HandlePointer handle_;
  std::chrono::milliseconds deadline_ = detail::kDefaultDeadline;
};

namespace detail {

template <class T>
struct FieldCodec<RemoteRef<T>> {
  static constexpr FieldKind kKind = FieldKind::kMessage;
  static constexpr std::size_t kMinBytes = 4;
  static void write(MessageWriter& out, const RemoteRef<T>& reference) {
    write_reference(out, reference.handle_);
  }
  static void read(MessageReader& in, RemoteRef<T>& reference) {
    reference.handle_ = read_reference(in);
  }
};

}  // namespace detail

// A function that makes an object for another worker, instead of the constructor of the object's
// class. It can give the object resources that only this worker has.
template <RemoteClass T>
using MakeObject =
    std::function<std::shared_ptr<T>(const typename detail::ArgumentsOf<T>::Type&, Context&)>;

namespace detail {

// The methods of a class in the form that a worker serves; `make` may be empty.
template <RemoteClass T>
std::vector<Method> methods_of(const ServeOptions& options, const MakeObject<T>& make = {}) {
  using Arguments = typename detail::ArgumentsOf<T>::Type;
  const std::uint64_t class_number = method_id(T::kName);
  std::vector<Method> all;
  const auto add = [&](std::string_view name, Method::Kind kind, Handler handler) {
    all.push_back({std::string(full_method_name(T::kName, name)), std::move(handler), kind, options,
                   class_number});
  };
  if constexpr (Creatable<T>) {
    add(kCreateName, Method::Kind::kCreate, [make](ServedCall& call) {
      const RequestOf<Arguments> arguments(call);
      // NOLINTBEGIN(bugprone-branch-clone): clang-tidy compares the branches that T discards.
      if (make) {
        call.object = make(*arguments, static_cast<Context&>(call));
      } else if constexpr (std::constructible_from<T, const Arguments&, Context&>) {
        call.object = std::make_shared<T>(*arguments, static_cast<Context&>(call));
      } else if constexpr (std::constructible_from<T, const Arguments&>) {
        call.object = std::make_shared<T>(*arguments);
      } else if constexpr (std::default_initializable<T>) {
        call.object = std::make_shared<T>();
      } else {
        throw Error(ErrorCode::kInvalid,
                    "serve() cannot make objects of this class; use "
                    "serve_made_by()");
      }
      // NOLINTEND(bugprone-branch-clone)
      call.answer(make_outgoing(Nothing{}, call.is_for_self()));
    });
  }
  if constexpr (Message<T>) {
    add(kFetchName, Method::Kind::kObject, [](ServedCall& call) {
      call.answer(make_outgoing(T(*std::static_pointer_cast<T>(call.object)), call.is_for_self()));
    });
  }
  const auto add_one = [&]<auto Function>(const RemoteMethod<Function>& method) {
    using Types = MethodTypes<decltype(Function)>;
    add(method.name, Method::Kind::kObject, [](ServedCall& call) {
      const RequestOf<typename Types::Request> request(call);
      T& object = *static_cast<T*>(call.object.get());
      const auto answer = [&](auto reply) {
        call.answer(make_outgoing(std::move(reply), call.is_for_self()));
      };
      if constexpr (Types::kHasContext) {
        Context& context = call;
        answer((object.*Function)(*request, context));
      } else {
        answer((object.*Function)(*request));
      }
    });
  };
  std::apply([&](const auto&... each) { (add_one(each), ...); }, T::methods());
  return all;
}

}  // namespace detail

}  // namespace paceline::rpc
