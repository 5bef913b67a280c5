// Observers and an agent: each observer plays CartPole and asks the agent for every move. After
// each episode of all observers the agent learns from their moves (REINFORCE: Williams, 1992):
//
//   paceline run --nproc-per-node 3 cart_pole        (one agent, two observers)
//
// Without a launcher, two observers play in this process and earn the same rewards.

#include "examples/rpc/cart_pole.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "paceline/engine/rpc/workers.h"
#include "paceline/training/remote/tensor_field.h"
#include "paceline/training/tensor/compute_settings.h"

namespace rpc = paceline::rpc;

constexpr int kObservers = 2, kEpisodes = 60, kMaxMoves = 200;

// ---- the messages between the agent and the observers ----

struct Choose {  // asks the agent for a move
  static constexpr std::string_view kName = "choose";
  struct Request {
    int observer = 0;
    torch::Tensor state;
    double draw = 0;  // a random number: the observer draws it, so that its game can be repeated
    static auto fields(auto& m) { return std::tie(m.observer, m.state, m.draw); }
  };
  struct Reply {
    bool right = false;
    static auto fields(auto& m) { return std::tie(m.right); }
  };
};
struct Play {  // asks an observer for an episode
  static constexpr std::string_view kName = "play";
  using Request = rpc::Nothing;
  struct Reply {
    int moves = 0;  // the reward: one for each move
    static auto fields(auto& m) { return std::tie(m.moves); }
  };
};

// ---- the agent ----

class Agent {
 public:
  Agent() {
    torch::manual_seed(3);
    policy_ = torch::nn::Sequential(torch::nn::Linear(4, 64), torch::nn::ReLU(),
                                    torch::nn::Linear(64, 2));
    optimizer_ = std::make_unique<torch::optim::Adam>(policy_->parameters(), 0.01);
  }
  // Thread-safe for different observers, which may ask at the same time.
  bool choose(int observer, const torch::Tensor& state, double draw) {
    const torch::NoGradGuard no_grad;
    const bool right = draw >= torch::softmax(policy_->forward(state), 0)[0].item<double>();
    Moves& moves = moves_[static_cast<std::size_t>(observer)];
    moves.states.push_back(state);
    moves.choices.push_back(right ? 1 : 0);
    return right;
  }
  // Learns from the moves of all observers, in the order of the observers.
  void learn() {
    torch::Tensor loss = torch::zeros({});
    for (Moves& moves : moves_) {
      std::vector<float> returns(moves.choices.size());
      float sum = 0;
      for (std::size_t i = returns.size(); i-- > 0;) returns[i] = sum = 1 + 0.99F * sum;
      auto worth = torch::tensor(returns);
      worth = (worth - worth.mean()) / (worth.std() + 1e-6);
      const auto scores = torch::log_softmax(policy_->forward(torch::stack(moves.states)), 1);
      const auto chosen = scores.gather(1, torch::tensor(moves.choices).unsqueeze(1)).squeeze(1);
      loss = loss - (chosen * worth).sum();
      moves = {};
    }
    optimizer_->zero_grad();
    loss.backward();
    optimizer_->step();
  }

 private:
  struct Moves {  // the moves of one observer in one episode
    std::vector<torch::Tensor> states;
    std::vector<std::int64_t> choices;
  };
  torch::nn::Sequential policy_{nullptr};
  std::unique_ptr<torch::optim::Adam> optimizer_;
  std::vector<Moves> moves_{kObservers};
};

// ---- an observer ----

using Chooser = std::function<bool(const torch::Tensor& state, double draw)>;

int play(CartPole& game, const Chooser& choose) {
  CartPole::State state = game.reset();
  for (int moves = 1; moves < kMaxMoves; ++moves) {
    const auto seen = torch::tensor(at::ArrayRef<float>(state.data(), state.size()));
    if (!game.push(choose(seen, game.draw()))) return moves;
    state = game.state();
  }
  return kMaxMoves;
}

// ---- the program ----

void train(Agent& agent, const std::function<std::vector<int>()>& play_all) {
  double average = 10;
  for (int episode = 1; episode <= kEpisodes; ++episode) {
    double sum = 0;
    for (const int moves : play_all()) sum += moves;
    agent.learn();
    average = 0.9 * average + 0.1 * sum / kObservers;
    if (episode % 10 == 0) std::printf("episode %d: mean reward %.6f\n", episode, average);
  }
}

void train_alone() {
  Agent agent;
  std::vector<CartPole> games;
  for (int i = 0; i < kObservers; ++i) games.emplace_back(i);
  train(agent, [&] {
    std::vector<int> all;
    for (int i = 0; i < kObservers; ++i) {
      all.push_back(play(
          games[static_cast<std::size_t>(i)],
          [&](const torch::Tensor& state, double draw) { return agent.choose(i, state, draw); }));
    }
    return all;
  });
}

void train_remotely(rpc::Workers& workers) {
  Agent agent;
  workers.serve<Choose>([&](const Choose::Request& request, rpc::Context&) {
    return Choose::Reply{agent.choose(request.observer, request.state, request.draw)};
  });
  train(agent, [&] {
    std::vector<int> all;
    std::vector<rpc::Future<Play::Reply>> running;
    for (int i = 1; i <= kObservers; ++i) {
      running.push_back(workers.call<Play>("observer" + std::to_string(i)));
    }
    for (auto& each : running) all.push_back(each.get().moves);
    return all;
  });
}

void observe(int number) {
  CartPole game(static_cast<std::uint32_t>(number));
  const auto serve = [&](rpc::Workers& self) {
    self.serve<Play>([&](const rpc::Nothing&, rpc::Context&) {
      return Play::Reply{play(game, [&](const torch::Tensor& state, double draw) {
        return self.call<Choose>("agent", {number, state, draw}).get().right;
      })};
    });
  };
  rpc::join("observer" + std::to_string(1 + number), {.prepare = serve})->wait_until_gone("agent");
}

int main() {
  paceline::set_thread_count(1);
  const char* const rank = std::getenv("RANK");  // set by `paceline run`
  if (rank == nullptr) return train_alone(), 0;
  if (std::string_view(rank) == "0") return train_remotely(*rpc::join("agent")), 0;
  observe(std::atoi(rank) - 1);
}
