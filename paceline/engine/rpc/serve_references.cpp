// The built-in methods by which holders of references hold and release objects. They run in the
// order in which they arrive.

#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/server.h"

namespace paceline::rpc {

void Server::serve_references() {
  serve({.name = std::string(kHoldMethod),
         .handler =
             [this](const std::shared_ptr<Incoming>& call) {
               const RequestOf<ObjectList> request(*call);
               ObjectStates states;
               {
                 CalleeRecord& session = *call->session_;
                 const std::lock_guard lock(session.mutex);
                 for (const ObjectNumber number : (*request).numbers) {
                   const bool exists = !session.has_ended && objects_.hold(number, session.number);
                   states.exist.push_back(exists ? 1 : 0);
                 }
               }
               call->answer(make_outgoing(std::move(states), call->is_for_self()));
             },
         .kind = Method::Kind::kAtOnce});
  serve({.name = std::string(kReleaseMethod),
         .handler =
             [this](const std::shared_ptr<Incoming>& call) {
               const RequestOf<ObjectList> request(*call);
               Objects::Dead dead;
               for (const ObjectNumber number : (*request).numbers) {
                 objects_.release(number, call->session_->number, dead);
               }
               bury(std::move(dead));
               call->answer(make_outgoing(Nothing{}, call->is_for_self()));
             },
         .kind = Method::Kind::kAtOnce});
}

}  // namespace paceline::rpc
