// architectures.mjs - the table of the architectures that weft is released for, with the names that other projects give
// each of them.
//
// flannel is released for the same six architectures. On amd64 and arm64 the npm registry has current official builds
// of Node.js, so weft is one executable file that contains Node.js. The registry's builds for armv7l, ppc64le and s390x
// end with Node.js 20.11, which is older than weft requires, and the registry has none for riscv64. On these four
// architectures, weft runs with the nodejs of Debian 13 (20.19).

/** The version of Node.js in weft's executables. Node.js is taken from packages of the npm registry. */
export const NODE_VERSION = '24.21.0'
/** The version of zig, whose C++ compiler makes the addons for musl. zig is taken from the Python package ziglang. */
export const ZIG_VERSION = '0.15.1'
/** The SHA-256 checksum of the Python package ziglang for amd64. */
export const ZIG_INTEGRITY = '4e45994a0e608d9b16ecad255698f5557a2e24de0bd7ba9efb156ab3f3683d9a'
/** The oldest version of Debian's nodejs that runs weft (`engines` in package.json). */
export const DEBIAN_NODE = '20.19'

/**
 * @typedef {object} Architecture
 * @property {string} name The name in Node.js (`process.arch`).
 * @property {string} debian The name in Debian.
 * @property {{ architecture: string, variant?: string }} platform The name in container images (Docker, Kubernetes).
 * @property {string} gnu The name in GNU's tools; the compiler is `${gnu}-g++`.
 * @property {string} [qemu] The program of qemu-user that runs programs of the architecture; amd64 needs none.
 * @property {string} [musl] The name in zig's compiler, for the addon that uses the C library musl. It is missing if
 *   the release has no addon for musl, because there is no Node.js for musl with which the addon can be tested.
 * @property {string} [rpm] The name in RPM packages. It is missing if the release has no RPM package, because the RPM
 *   package contains the executable.
 * @property {string} [integrity] npm's checksum of the official Node.js. It is missing if Debian's nodejs is the
 *   runtime.
 * @property {readonly [number, number]} glibc The newest version of glibc that the addon may require. With the official
 *   Node.js the addon is linked to the C library of Debian 11, and requires no newer glibc than Node.js does. For
 *   Debian's nodejs the addon is linked to the C library of the cross compiler, because Debian's mirrors no longer have
 *   the other architectures of Debian 11. In glibc 2.34 libc.so got the functions for threads and, on arm, functions
 *   with 64-bit times.
 */

/** @type {readonly Architecture[]} */
export const ARCHITECTURES = [
  {
    name: 'x64',
    debian: 'amd64',
    platform: { architecture: 'amd64' },
    gnu: 'x86_64-linux-gnu',
    musl: 'x86_64-linux-musl',
    rpm: 'x86_64',
    integrity: '3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
    glibc: [2, 28],
  },
  {
    name: 'arm64',
    debian: 'arm64',
    platform: { architecture: 'arm64' },
    gnu: 'aarch64-linux-gnu',
    musl: 'aarch64-linux-musl',
    qemu: 'qemu-aarch64-static',
    rpm: 'aarch64',
    integrity: 'FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
    glibc: [2, 28],
  },
  {
    // The architecture is ARMv7 with the floating-point unit VFPv3.
    name: 'arm',
    debian: 'armhf',
    platform: { architecture: 'arm', variant: 'v7' },
    gnu: 'arm-linux-gnueabihf',
    qemu: 'qemu-arm-static',
    glibc: [2, 34],
  },
  {
    name: 'ppc64',
    debian: 'ppc64el',
    platform: { architecture: 'ppc64le' },
    gnu: 'powerpc64le-linux-gnu',
    qemu: 'qemu-ppc64le-static',
    glibc: [2, 34],
  },
  {
    name: 'riscv64',
    debian: 'riscv64',
    platform: { architecture: 'riscv64' },
    gnu: 'riscv64-linux-gnu',
    qemu: 'qemu-riscv64-static',
    glibc: [2, 34],
  },
  {
    name: 's390x',
    debian: 's390x',
    platform: { architecture: 's390x' },
    gnu: 's390x-linux-gnu',
    qemu: 'qemu-s390x-static',
    glibc: [2, 34],
  },
]
