// Switching between stacks without a system call, so that a fiber for each CUDA thread is fast enough.
#pragma once

#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace kernelsim {

using FiberMain = void (*)();

#if defined(__x86_64__)

// Saves the registers that a call must preserve on the old stack, and loads those of the new stack.
extern "C" __attribute__((visibility("hidden"))) void kernelsim_switch(void** from, void* to);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".weak kernelsim_switch\n"  // in each object that includes this; the linker keeps one
    ".hidden kernelsim_switch\n"
    ".type kernelsim_switch, @function\n"
    "kernelsim_switch:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size kernelsim_switch, .-kernelsim_switch\n");

class Context {
 public:
  // The first switch "returns" to main, with the stack as after a call: 8 bytes off a multiple of 16.
  void prepare(char* stack, uint64_t size, FiberMain main) {
    void** top = reinterpret_cast<void**>(stack + size);
    *--top = nullptr;  // where main would return to
    *--top = reinterpret_cast<void*>(main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    pointer_ = top;
  }
  void switch_to(Context& other) { kernelsim_switch(&pointer_, other.pointer_); }

 private:
  void* pointer_ = nullptr;
};

#elif defined(__aarch64__)

extern "C" __attribute__((visibility("hidden"))) void kernelsim_switch(void** from, void* to);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".weak kernelsim_switch\n"  // in each object that includes this; the linker keeps one
    ".hidden kernelsim_switch\n"
    ".type kernelsim_switch, %function\n"
    "kernelsim_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size kernelsim_switch, .-kernelsim_switch\n");

class Context {
 public:
  void prepare(char* stack, uint64_t size, FiberMain main) {
    void** frame = reinterpret_cast<void**>(stack + size - 160);
    for (int i = 0; i < 20; i++) frame[i] = nullptr;
    frame[11] = reinterpret_cast<void*>(main);  // x30, to which the first switch returns
    pointer_ = frame;
  }
  void switch_to(Context& other) { kernelsim_switch(&pointer_, other.pointer_); }

 private:
  void* pointer_ = nullptr;
};

#else  // any other processor: two system calls for each switch, but it works

class Context {
 public:
  void prepare(char* stack, uint64_t size, FiberMain main) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = size;
    context_.uc_link = nullptr;
    makecontext(&context_, main, 0);
  }
  void switch_to(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_;
};

#endif

}  // namespace kernelsim
