// Runs the programs of a simulated launch over threads. Compiled once for all kernels.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

extern "C" __attribute__((visibility("default"))) void kernelsim_run(void (*enter)(uint32_t), void (*kernel)(void**),
                                                                    void** arguments, uint64_t total,
                                                                    const uint32_t* order, uint32_t threads) {
  std::atomic<uint64_t> next{0};
  auto work = [&] {
    for (uint64_t i; (i = next++) < total;) {
      enter(order ? order[i] : (uint32_t)i);
      kernel(arguments);
    }
  };
  std::vector<std::thread> others;
  for (uint32_t t = 1; t < threads && t < total; t++) others.emplace_back(work);
  work();
  for (auto& t : others) t.join();
}
