// SPDX-License-Identifier: Apache-2.0
// A preload library that lets a program find AMX where the hypervisor offers the unit but hides the
// CPUID leaves that describe it (0x1D: tile palettes, 0x1E: the multiplier). Libraries that size
// their tiles from those leaves otherwise configure empty tiles and die.
//
// Linux can make CPUID fault in user mode (arch_prctl ARCH_SET_CPUID). Each fault arrives as
// SIGSEGV; the handler runs the instruction with faulting off for the moment, overrides what
// palette 1 fixes by definition (8 tiles of 16 rows of 64 bytes), and steps over the two bytes.
// Threads inherit the setting; exec clears it and preloads the library again. Where the leaves are
// visible, or there is no AMX, nothing is changed.
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { kSetCpuid = 0x1012, kFault = 0, kAllow = 1 };
enum { kLeafPalette = 0x1D, kLeafMultiplier = 0x1E };

typedef struct {
  unsigned a, b, c, d;
} Registers;

static int active;
static struct sigaction theirs;  // what the program wants SIGSEGV to do

static long set_cpuid(int mode) { return syscall(SYS_arch_prctl, kSetCpuid, mode); }

static Registers read_cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
  return r;
}

static Registers shown(unsigned leaf, unsigned subleaf) {
  Registers r = read_cpuid(leaf, subleaf);
  if (leaf == 0 && r.a < kLeafMultiplier) r.a = kLeafMultiplier;
  if (leaf == kLeafPalette) {
    memset(&r, 0, sizeof r);
    if (subleaf == 0) r.a = 1;  // the highest palette
    if (subleaf == 1) {
      r.a = 1024u << 16 | 8192u;  // bytes of a tile, of all tiles
      r.b = 8u << 16 | 64u;       // tiles, bytes of a row
      r.c = 16u;                  // rows
    }
  }
  if (leaf == kLeafMultiplier) {
    memset(&r, 0, sizeof r);
    if (subleaf == 0) r.b = 64u << 8 | 16u;  // bytes of a column, rows
  }
  return r;
}

static void on_fault(int number, siginfo_t* info, void* context) {
  greg_t* g = ((ucontext_t*)context)->uc_mcontext.gregs;
  const unsigned char* code = (const unsigned char*)g[REG_RIP];
  // SI_KERNEL: a general protection fault, so the code at RIP was fetched and can be read.
  if (info->si_code == SI_KERNEL && code[0] == 0x0F && code[1] == 0xA2) {
    set_cpuid(kAllow);
    Registers r = shown((unsigned)g[REG_RAX], (unsigned)g[REG_RCX]);
    set_cpuid(kFault);
    g[REG_RAX] = r.a;
    g[REG_RBX] = r.b;
    g[REG_RCX] = r.c;
    g[REG_RDX] = r.d;
    g[REG_RIP] += 2;
    return;
  }
  if (theirs.sa_flags & SA_SIGINFO) {
    theirs.sa_sigaction(number, info, context);
  } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
    theirs.sa_handler(number);
  } else {
    signal(SIGABRT, SIG_DFL);
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGABRT);
  }
}

typedef int (*SigactionFunction)(int, const struct sigaction*, struct sigaction*);

static SigactionFunction real_sigaction(void) {
  static SigactionFunction function;
  if (!function) function = (SigactionFunction)dlsym(RTLD_NEXT, "sigaction");
  return function;
}

// The program may set a handler of its own: it is kept and called for every other fault.
int sigaction(int number, const struct sigaction* set, struct sigaction* old) {
  if (number != SIGSEGV || !active) return real_sigaction()(number, set, old);
  struct sigaction before = theirs;
  if (set) theirs = *set;
  if (old) *old = before;
  return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction set, old;
  memset(&set, 0, sizeof set);
  set.sa_handler = handler;
  set.sa_flags = SA_RESTART;
  return sigaction(number, &set, &old) == 0 ? old.sa_handler : SIG_ERR;
}

__attribute__((constructor)) static void start(void) {
  if (read_cpuid(0, 0).a < 7 || !(read_cpuid(7, 0).d >> 24 & 1)) return;  // no AMX tiles
  if (read_cpuid(0, 0).a >= kLeafPalette && read_cpuid(kLeafPalette, 0).a >= 1) return;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  if (real_sigaction()(SIGSEGV, &action, &theirs) != 0) return;
  if (set_cpuid(kFault) != 0) {
    real_sigaction()(SIGSEGV, &theirs, NULL);
    return;
  }
  active = 1;
}
