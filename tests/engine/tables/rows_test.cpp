// Rows with one worker: values, optimizers, duplicates, admission, expiry.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <sys/stat.h>

#include "tests/engine/tables/table_job.h"

namespace paceline::tables {
namespace {

using namespace testing_job;

TEST(Rows, BeginWithValuesThatDependOnSeedAndIdOnly) {
  const Memories one({.width = 5, .seed = 3}), two({.width = 5, .capacity = 10, .seed = 3}),
      other({.width = 5, .seed = 4});
  const auto rows = open(one.first(), "a");
  const auto values = pull(*rows, {7, -1, 7});
  EXPECT_EQ(values, pull(*open(two.first(), "b"), {7, -1, 7}));
  EXPECT_NE(values, pull(*open(other.first(), "c"), {7, -1, 7}));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(values[i], values[10 + i]);
    EXPECT_NE(values[i], values[5 + i]);
    EXPECT_LT(std::abs(values[i]), 0.01F);
  }
  EXPECT_EQ(rows->stats().rows, 0U);  // a pull makes no row
}

TEST(Rows, TakeAnyId) {
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  const std::vector<Id> ids = {0, -1, std::numeric_limits<Id>::min(),
                               std::numeric_limits<Id>::max(), 1};
  rows->push(ids, std::vector<float>{1, 2, 3, 4, 5});
  EXPECT_EQ(pull(*rows, ids), (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(rows->stats().rows, 5U);
}

TEST(Rows, AddTheGradientsOfAnIdInTheOrderOfTheBatch) {
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  std::vector<Id> ids(10'000, 5);
  std::vector<float> gradients(ids.size());
  std::mt19937 random(1);
  float sum = 0;
  for (auto& gradient : gradients) {
    gradient = std::uniform_real_distribution<float>(-1, 1)(random);
    sum += gradient;
  }
  rows->push(ids, gradients);
  EXPECT_EQ(pull(*rows, {5})[0], sum);
  EXPECT_EQ(rows->stats().pushed_rows, 1U);
}

TEST(Rows, KeepManyRows) {
  const Memories memories(adding_rows(3));
  const auto rows = open(memories.first(), "a");
  std::vector<Id> ids;
  std::vector<float> gradients;
  for (int i = 0; i < 9'000; ++i) {
    ids.push_back(Id{i} * 1'000'003 - 5'000);
    for (int j = 0; j < 3; ++j) gradients.push_back(static_cast<float>(3 * i + j));
  }
  rows->push(ids, gradients);
  rows->push(ids, gradients);
  auto values = pull(*rows, ids);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 2 * gradients[i]);
  EXPECT_EQ(rows->stats().rows, 9'000U);
}

// The pages of a table are those of its file: workers that map it have no copies.
TEST(Rows, TakeMemoryAsTheyAppearAndOnceForAllWorkers) {
  constexpr std::size_t kRows = 100'000, kRowBytes = 64 * sizeof(float);
  RowOptions options = adding_rows(64);
  options.capacity = 1'000'000;
  const Memories memories(options);
  const auto pages = [&] {
    struct stat status {};
    fstat(memories.first()->descriptor(), &status);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  const auto rows = open(memories.first(), "a");
  const std::size_t empty = pages();
  EXPECT_LT(empty, 32U << 20);
  std::vector<Id> ids(kRows);
  for (std::size_t i = 0; i < kRows; ++i) ids[i] = static_cast<Id>(i);
  rows->push(ids, std::vector<float>(kRows * 64, 1));
  const std::size_t full = pages();
  EXPECT_GE(full - empty, kRows * (kRowBytes + sizeof(Entry)));
  EXPECT_LT(full - empty, kRows * (kRowBytes + sizeof(Entry)) + (8U << 20));
  const auto other = open(memories.mapped(), "b");
  EXPECT_EQ(pull(*other, ids), std::vector<float>(kRows * 64, 1));
  EXPECT_EQ(pages(), full);
}

TEST(Rows, NothingHappensInAnEmptyBatch) {
  const Memories memories(adding_rows(3));
  const auto rows = open(memories.first(), "a");
  rows->push({}, {});
  EXPECT_TRUE(pull(*rows, {}).empty());
  EXPECT_EQ(rows->stats().pushed_ids, 0U);
  EXPECT_EQ(rows->sequence(), 0U);
}

// The optimizers, element by element, as PyTorch documents them.
class Optimizers : public testing::Test {
 protected:
  static constexpr int kSteps = 4;
  static std::vector<float> gradient(int step) {
    return {0.5F * static_cast<float>(step + 1), -0.25F, 0.125F};
  }
  static std::vector<float> after_steps(const RowOptimizer& optimizer) {
    const Memories memories({.width = 3, .optimizer = optimizer, .initial_range = 0});
    const auto rows = open(memories.first(), "a");
    for (int step = 0; step < kSteps; ++step) rows->push(std::vector<Id>{9}, gradient(step));
    return pull(*rows, {9});
  }
  static void expect_near(const std::vector<float>& values, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(values[i], expected[i], 2e-6);
  }
};

TEST_F(Optimizers, SGD) {
  std::vector<double> w(3), u(3);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < 3; ++i) {
      u[i] = 0.9 * u[i] + gradient(step)[i] + 0.1 * w[i];
      w[i] -= 0.01 * u[i];
    }
  }
  expect_near(after_steps(SGD{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1}), w);
}

TEST_F(Optimizers, Adam) {
  std::vector<double> w(3), m(3), v(3);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double g = gradient(step)[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      const double a = m[i] / (1 - std::pow(0.9, step + 1));
      const double b = v[i] / (1 - std::pow(0.999, step + 1));
      w[i] -= 0.02 * a / (std::sqrt(b) + 1e-8);
    }
  }
  expect_near(after_steps(Adam{.lr = 0.02}), w);
}

TEST_F(Optimizers, Adagrad) {
  std::vector<double> w(3), sum(3);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double g = gradient(step)[i];
      sum[i] += g * g;
      w[i] -= 0.02 * g / (std::sqrt(sum[i]) + 1e-10);
    }
  }
  expect_near(after_steps(Adagrad{.lr = 0.02}), w);
}

TEST_F(Optimizers, RowAdagrad) {
  std::vector<double> w(3);
  double mean = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < 3; ++i) mean += gradient(step)[i] * gradient(step)[i] / 3;
    for (std::size_t i = 0; i < 3; ++i)
      w[i] -= 0.02 * gradient(step)[i] / (std::sqrt(mean) + 1e-10);
  }
  expect_near(after_steps(RowAdagrad{.lr = 0.02}), w);
}

TEST_F(Optimizers, TakeTheLearningRateOfTheMoment) {
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  rows->push(std::vector<Id>{1}, std::vector<float>{8});
  rows->set_lr(-0.5);
  rows->push(std::vector<Id>{1}, std::vector<float>{8});
  EXPECT_EQ(pull(*rows, {1})[0], 12);
  EXPECT_EQ(rows->lr(), -0.5);
}

TEST(Rows, AreAdmittedAfterSomeSightings) {
  RowOptions options = adding_rows(1);
  options.admit_after = 3;
  const Memories memories(options);
  const auto rows = open(memories.first(), "a");
  const std::vector<Id> ids = {1, 1, 2};
  const std::vector<float> ones(3, 1);
  rows->push(ids, ones);  // an id counts once in a push
  rows->push(ids, ones);
  EXPECT_EQ(pull(*rows, {1, 2}), (std::vector<float>{0, 0}));
  EXPECT_EQ(rows->stats().rows, 0U);
  rows->push(ids, ones);
  EXPECT_EQ(pull(*rows, {1, 2}), (std::vector<float>{2, 1}));
  EXPECT_EQ(rows->stats().rows, 2U);
  EXPECT_EQ(rows->stats().dropped_gradients, 4U);
}

TEST(Rows, Expire) {
  RowOptions options = adding_rows(1);
  options.expire_after = 3;
  options.capacity = 2;
  const Memories memories(options);
  const auto rows = open(memories.first(), "a");
  rows->push(std::vector<Id>{1, 2}, std::vector<float>{1, 2});
  for (int tick = 0; tick < 3; ++tick) {
    rows->tick();
    EXPECT_EQ(pull(*rows, {2})[0], 2);  // a pull keeps it
  }
  rows->tick();
  EXPECT_EQ(pull(*rows, {1, 2}), (std::vector<float>{0, 2}));  // it has expired, removed or not
  rows->push(std::vector<Id>{1}, std::vector<float>{5});
  EXPECT_EQ(pull(*rows, {1, 2}), (std::vector<float>{5, 2}));  // and begins again
  EXPECT_EQ(rows->stats().rows, 2U);
  for (int tick = 0; tick < 70; ++tick) rows->tick();
  EXPECT_EQ(rows->stats().rows, 0U);
  EXPECT_EQ(rows->stats().expired_rows, 2U);
  rows->push(std::vector<Id>{7, 8}, std::vector<float>{7, 8});  // their memory is used again
  EXPECT_EQ(pull(*rows, {1, 2, 7, 8}), (std::vector<float>{0, 0, 7, 8}));
}

TEST(Rows, ComeAndGoWithoutLosingMemory) {
  RowOptions options = adding_rows(3);
  options.expire_after = 1;
  options.admit_after = 2;
  options.capacity = 300;
  options.candidates = 600;
  const Memories memories(options);
  const auto rows = open(memories.first(), "a");
  std::mt19937_64 random(7);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<Id> ids(3);
    for (auto& id : ids) id = static_cast<Id>(random() % 50) + (round / 50) * 100;
    rows->push(ids, std::vector<float>(9, 1));
    if (round % 3 == 0) rows->tick();
  }
  for (int tick = 0; tick < 70; ++tick) rows->tick();
  EXPECT_EQ(rows->stats().rows, 0U);
}

TEST(RowBatch, FindsTheDifferentIds) {
  RowBatch batch;
  const std::vector<Id> ids = {4, 9, 4, -1, 9, 4};
  batch.assign(ids);
  ASSERT_EQ(batch.size(), 3U);
  EXPECT_EQ(batch.id(0), 4);
  EXPECT_EQ(batch.id(1), 9);
  EXPECT_EQ(batch.id(2), -1);
  const std::vector<float> gradients = {1, 10, 2, 100, 20, 4};
  std::vector<float> sum;
  EXPECT_EQ(*batch.gradient(0, gradients, 1, sum), 7);
  EXPECT_EQ(*batch.gradient(1, gradients, 1, sum), 30);
  EXPECT_EQ(*batch.gradient(2, gradients, 1, sum), 100);
  const auto digest = batch.digest();
  batch.assign(std::vector<Id>{4, 9, 4, -1, 9, 5});
  EXPECT_NE(batch.digest(), digest);
}

}  // namespace
}  // namespace paceline::tables
