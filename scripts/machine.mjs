// machine.mjs - lists the programs and rights that the project's npm scripts need, checks which of these this machine
// has, and says how to get the missing ones.
//
// setup.mjs installs missing Debian packages, or fails with their names. Tests that the machine cannot run are skipped
// (test/support/needs.ts). machine.mjs has no npm dependencies, because setup.mjs uses it before npm packages are
// installed.

import { spawnSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { ARCHITECTURES } from './release/architectures.mjs'

/** The kinds of npm scripts that a developer uses every day; `npm run setup` installs their prerequisites. */
export const COMMON = ['demo', 'test', 'bench', 'lint']
/** The kinds of tests whose prerequisites are installed only if the user runs these tests by name. */
const NAMED = [
  'stubborn',
  'soak',
  'paths',
  'etcd',
  'kube',
  'kubelet',
  'cluster',
  'page',
  'image',
  'vm',
  'arch',
  'fuzz',
  'mutants',
  'release',
  'broken',
]
export const KINDS = [...COMMON, 'build', ...NAMED]
/** The kinds of npm scripts that simulate hosts with network namespaces. */
const HOSTED = [
  'demo',
  'test',
  'bench',
  'soak',
  'paths',
  'kube',
  'kubelet',
  'cluster',
  'page',
  'image',
  'release',
  'broken',
]

/** Names of prerequisites that are not programs from a Debian package. */
export const HOSTS = "root's right to make network namespaces, and /dev/net/tun"
export const KUBE_APISERVER = 'a real kube-apiserver'
export const HELM = 'Helm'
export const CHART_TOOLS = 'helm-unittest and kubeconform'
export const CHARON = "strongSwan's charon"
export const VICI = "charon's plugin vici"
export const LIBIPSEC = "charon's plugin kernel-libipsec"
export const GCM = "strongSwan's plugin gcm"
export const NODE = 'an architecture that the npm registry has Node.js for'

/**
 * The folders that are searched for CNI plugins: those of the variable CNI_PATH, and the usual folders of a Kubernetes
 * node.
 */
export const CNI_FOLDERS = [...(process.env.CNI_PATH ?? '').split(':'), '/opt/cni/bin', '/usr/lib/cni'].filter(Boolean)

/** The folders in which the dynamic linker searches if a path contains $LIB, on Debian and on other distributions. */
const LIBRARY_FOLDERS = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64', '/usr/lib']

/**
 * @typedef {object} Need
 * @property {string} name The name of the command to look for in PATH, or any name if `isThere` does the check.
 * @property {readonly string[]} for The kinds of npm scripts that need this prerequisite.
 * @property {boolean} [toBuild] True if only a build of the addon needs this prerequisite.
 * @property {() => boolean} [isThere] Returns true if this machine has the prerequisite.
 * @property {string | (() => string)} [package] The Debian package that provides the prerequisite.
 * @property {() => string} [remedy] Returns how to get the prerequisite if no Debian package provides it.
 */

/** @type {readonly Need[]} */
export const NEEDS = [
  { name: 'make', package: 'make', for: KINDS, toBuild: true },
  { name: 'g++', package: 'g++', for: KINDS, toBuild: true },
  { name: 'python3', package: 'python3', for: KINDS, toBuild: true },
  { name: 'python3', package: 'python3', for: ['test'] }, // acts as systemd in tests
  { name: 'g++', package: 'g++', for: ['bench', 'test', 'soak', 'lint', 'mutants'] }, // test programs in C++
  { name: 'ip', package: 'iproute2', for: HOSTED },
  { name: 'nstat', package: 'iproute2', for: ['test'] },
  { name: 'ping', package: 'iputils-ping', for: HOSTED },
  { name: 'ethtool', package: 'ethtool', for: ['bench', 'test', 'soak', 'paths'] },
  { name: 'iperf3', package: 'iperf3', for: ['demo', 'bench', 'test', 'soak', 'paths', 'cluster', 'page'] },
  { name: 'unshare', package: 'util-linux', for: HOSTED },
  { name: 'setpriv', package: 'util-linux', for: [...HOSTED, 'stubborn', 'vm'] },
  { name: 'iptables', package: 'iptables', for: ['test', 'kube', 'cluster'] },
  { name: 'nft', package: 'nftables', for: ['test', 'soak', 'cluster'] },
  { name: 'tcpdump', package: 'tcpdump', for: ['demo', 'test', 'soak', 'paths', 'kube'] },
  { name: 'wg', package: 'wireguard-tools', for: ['demo', 'test', 'bench'] },
  { name: 'wireguard-go', package: 'wireguard-go', for: ['test', 'bench'] },
  inStrongSwan(CHARON, 'charon', 'strongswan-charon'),
  inStrongSwan(VICI, 'plugins/libstrongswan-vici.so', 'strongswan-swanctl'),
  inStrongSwan(LIBIPSEC, 'plugins/libstrongswan-kernel-libipsec.so', 'libcharon-extra-plugins'),
  inStrongSwan(GCM, 'plugins/libstrongswan-gcm.so', 'libstrongswan-standard-plugins'),
  { name: 'nebula', package: 'nebula', for: ['bench'] },
  {
    name: "CNI's plugins",
    isThere: () => CNI_FOLDERS.some((folder) => existsSync(join(folder, 'bridge'))),
    package: 'containernetworking-plugins',
    for: ['test'],
  },
  { name: 'etcd', package: 'etcd-server', for: ['bench', 'test', 'soak', 'kube'] },
  { name: 'etcdctl', package: 'etcd-client', for: ['bench', 'test', 'soak', 'kube'] },
  { name: 'openssl', package: 'openssl', for: ['test', 'kube', 'cluster'] },
  { name: 'prometheus', package: 'prometheus', for: ['test'] },
  { name: 'promtool', package: 'prometheus', for: ['test', 'kube'] },
  { name: 'curl', package: 'curl', for: ['test', 'soak', 'kubelet', 'cluster'] },
  {
    name: 'libfaketime',
    isThere: () => LIBRARY_FOLDERS.some((folder) => existsSync(join(folder, 'faketime/libfaketime.so.1'))),
    package: 'libfaketime',
    for: ['broken'],
  },
  { name: 'podman', package: 'podman', for: ['image', 'kubelet'] },
  { name: 'runc', package: 'runc', for: ['image', 'kubelet'] },
  { name: 'containerd', package: 'containerd', for: ['kubelet'] },
  { name: 'gcc', package: 'gcc', for: ['kubelet', 'cluster'] },
  { name: 'mmdebstrap', package: 'mmdebstrap', for: ['image', 'kubelet', 'cluster', 'release'] },
  { name: 'dpkg-deb', package: 'dpkg', for: ['test', 'release'] },
  { name: 'rpmbuild', package: 'rpm', for: ['test', 'release'] },
  { name: 'g++', package: 'g++', for: ['release'] },
  { name: 'pip3', package: 'python3-pip', for: ['release'] }, // downloads zig, and Node.js for musl
  { name: 'clang++', package: 'clang', for: ['test', 'soak', 'lint', 'fuzz', 'release'] },
  { name: 'clang-format', package: 'clang-format', for: ['lint'] },
  { name: "libFuzzer and clang's sanitizers", isThere: hasFuzzer, package: fuzzerPackage, for: ['fuzz'] },
  ...ARCHITECTURES.flatMap(({ gnu, qemu }) =>
    qemu === undefined
      ? []
      : [
          { name: `${gnu}-g++`, package: `g++-${gnu}`, for: ['arch', 'release'] },
          { name: qemu, package: 'qemu-user-static', for: ['arch', 'release'] },
        ],
  ),
  { name: 'qemu-system-x86_64', package: 'qemu-system-x86', for: ['vm'] },
  { name: 'busybox', package: 'busybox-static', for: ['test', 'vm', 'cluster'] },
  // Tests of the manual pages and of the completion of weft's commands.
  ...['mandoc', 'zsh', 'fish'].map((name) => ({ name, package: name, for: ['test'] })),
  { name: 'cpio', package: 'cpio', for: ['vm'] },
  { name: 'modprobe', package: 'kmod', for: ['vm'] },
  { name: 'chromium', package: 'chromium', for: ['page'] },
  {
    name: 'fonts',
    isThere: () => existsSync('/usr/share/fonts/truetype/dejavu'),
    package: 'fonts-dejavu-core',
    for: ['page'],
  },
  // kube-build.mjs builds programs of Kubernetes from source with dpkg-source and the commands after it. With kubectl
  // the tests query the API server as an operator does.
  { name: 'dpkg-source', package: 'dpkg-dev', for: ['kube', 'kubelet'] },
  { name: 'rsync', package: 'rsync', for: ['kube', 'kubelet'] },
  { name: 'jq', package: 'jq', for: ['test', 'kube', 'cluster'] },
  { name: 'go', package: 'golang-go', for: ['etcd', 'kube', 'kubelet', 'cluster', 'vm'] },
  { name: 'kubectl', package: 'kubernetes-client', for: ['kube'] },
  {
    name: 'the C library of seccomp', // runc is built with it
    isThere: () => existsSync('/usr/include/seccomp.h'),
    package: 'libseccomp-dev',
    for: ['cluster'],
  },
  goLibrary('github.com/modern-go/reflect2', 'golang-github-modern-go-reflect2-dev'),
  goLibrary('github.com/json-iterator/go', 'golang-github-json-iterator-go-dev'),
  // The entry HOSTS must come after the entries of programs, because its check runs some of these programs. The kind
  // `test` does not require HOSTS: `npm test` skips tests that need simulated hosts.
  {
    name: HOSTS,
    isThere: () => whyNoHosts() === undefined,
    remedy: () => whyNoHosts() ?? '',
    for: ['soak', 'paths', 'kube', 'kubelet', 'cluster', 'page', 'image', 'broken'],
  },
  {
    name: NODE,
    isThere: () => ['x64', 'arm64'].includes(process.arch),
    remedy: () => 'run it on amd64 or arm64',
    for: ['image', 'kubelet', 'cluster'],
  },
  {
    name: 'amd64, which cross-compiles for arm64',
    isThere: () => process.arch === 'x64',
    remedy: () => 'run it on amd64',
    for: ['release'],
  },
  // Debian has no package for kube-apiserver, Helm and the entries after them; run.mjs builds or downloads these
  // programs.
  { name: KUBE_APISERVER, isThere: () => Boolean(process.env.WEFT_KUBE_APISERVER), remedy: byTestKube, for: [] },
  { name: HELM, isThere: () => Boolean(process.env.WEFT_HELM), remedy: byTestKube, for: [] },
  { name: CHART_TOOLS, isThere: () => Boolean(process.env.WEFT_CHART_TOOLS), remedy: byTestKube, for: [] },
]

function byTestKube() {
  return '`npm run test:kube` gets it'
}

/** Returns the path of a strongSwan file, which differs between Debian and other distributions. */
function inStrongSwan(name, file, debianPackage) {
  const folders = ['/usr/lib/ipsec', '/usr/lib/strongswan', '/usr/libexec/ipsec', '/usr/libexec/strongswan']
  return {
    name,
    isThere: () => folders.some((folder) => existsSync(join(folder, file))),
    package: debianPackage,
    for: ['test', 'vm'],
  }
}

/**
 * Returns the prerequisite for a Go library, which Debian packages as source, so its presence is checked by a path.
 * @param {string} path
 * @param {string} name
 * @returns {Need}
 */
function goLibrary(path, name) {
  const isThere = () => existsSync(join('/usr/share/gocode/src', path))
  return { name: `${path} for Go`, isThere, package: name, for: ['kube', 'kubelet'] }
}

/**
 * Returns the folder of clang's own libraries, which is named after clang's version; undefined if clang is not
 * installed.
 */
function clangFolder() {
  const clang = find('clang++')
  return clang && spawnSync(clang, ['-print-resource-dir'], { encoding: 'utf8' }).stdout.trim()
}

/** True if clang can link a fuzzer. Since clang 14 Debian has the libFuzzer library in a separate package. */
function hasFuzzer() {
  const folder = clangFolder()
  const libraries = folder && join(folder, 'lib')
  // The libFuzzer library is libclang_rt.fuzzer-x86_64.a; newer versions of clang have libclang_rt.fuzzer.a in a folder
  // per target.
  return (
    existsSync(libraries ?? '') &&
    readdirSync(libraries ?? '', { recursive: true, encoding: 'utf8' }).some((path) =>
      /libclang_rt\.fuzzer(-\w+)?\.a$/.test(path),
    )
  )
}

/**
 * Returns the name of the Debian package with libFuzzer for the installed version of clang. If clang is not installed,
 * assumes the version of Debian's package `clang`.
 */
function fuzzerPackage() {
  const folder = clangFolder()
  return folder ? `libclang-rt-${Number.parseInt(basename(folder), 10)}-dev` : 'libclang-rt-dev'
}

/**
 * Returns why tests cannot simulate hosts with network namespaces on this machine, with the remedy; undefined if they
 * can.
 */
export function whyNoHosts() {
  if (process.getuid?.() !== 0) return 'run it as root'
  return whyNoDemo()
}

/**
 * The capabilities that root needs to make network namespaces and TUN devices, with their bit numbers
 * (linux/capability.h).
 */
const NEEDED = { CAP_NET_ADMIN: 12n, CAP_SYS_ADMIN: 21n }
const IN_CONTAINER = 'start the container with `docker run --privileged`, or run this on the host'

/**
 * The command with which an unprivileged user runs a program as root of new namespaces. lab/unprivileged.ts uses the
 * same command.
 */
export const AS_ROOT_OF_OWN = ['unshare', '--user', '--map-root-user', '--net', '--mount', '--']

/**
 * Returns why the demo cannot simulate its hosts on this machine, with the remedy; undefined if it can. Root needs two
 * capabilities. Users other than root need a kernel that lets unprivileged users make namespaces.
 * @param {{ isRoot?: boolean, status?: string, openTun?: () => void, unshare?: (command: string[]) => string |
 * undefined }} [machine]
 */
export function whyNoDemo({
  isRoot = process.getuid?.() === 0,
  status = readStatus(),
  openTun = () => closeSync(openSync('/dev/net/tun', 'r+')),
  unshare = tryToRun,
} = {}) {
  const effective = /^CapEff:\s*([\da-f]+)$/m.exec(status)?.[1]
  const has = BigInt(`0x${effective ?? 'ffffffffff'}`)
  const lacking = Object.entries(NEEDED).flatMap(([name, bit]) => ((has >> bit) & 1n ? [] : [name]))
  if (isRoot && lacking.length > 0)
    return `network namespaces and devices cannot be made: ${lacking.join(' and ')} ${lacking.length > 1 ? 'are' : 'is'} missing; ${IN_CONTAINER}`
  try {
    openTun()
  } catch (error) {
    const { code } = /** @type {NodeJS.ErrnoException} */ (error)
    // The kernel lets every user open /dev/net/tun, unless the mode of the device file forbids it. The remedy changes
    // the mode. This is safe, because users can make TUN devices only in namespaces of their own.
    if (!isRoot && code === 'EACCES')
      return 'this user may not open /dev/net/tun; run it as root, or allow it, as root: chmod 0666 /dev/net/tun'
    return `/dev/net/tun cannot be opened (${code}); as root \`modprobe tun\`; a container needs --device /dev/net/tun, or --privileged`
  }
  const refused = unshare(isRoot ? ['unshare', '--net', '--mount', 'true'] : [...AS_ROOT_OF_OWN, 'true'])
  if (refused === undefined) return undefined
  return isRoot
    ? `network namespaces cannot be made (${refused}); ${IN_CONTAINER}`
    : `the kernel lets this user make no namespaces (${refused}); run it as root, or allow it, as root: sysctl kernel.unprivileged_userns_clone=1 (Debian), sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)`
}

function readStatus() {
  try {
    return readFileSync('/proc/self/status', 'utf8')
  } catch {
    return ''
  }
}

/** Returns the error output of a command that fails; undefined if it succeeds.
 * @param {string[]} command
 * @returns {string | undefined} */
function tryToRun([file, ...args]) {
  const { status, stderr, error } = spawnSync(file, args, { encoding: 'utf8' })
  // Do not report a missing program as an error, because setup later installs the program or reports that it is
  // missing.
  if (error && 'code' in error && error.code === 'ENOENT') return undefined
  return status === 0 ? undefined : (stderr ?? '').trim() || error?.message || `${file} failed`
}

/** Returns the path of a command. Also searches the sbin folders, which an ordinary user's PATH lacks on Debian.
 * @param {string} command */
export function find(command) {
  const folders = [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/sbin']
  return folders.map((folder) => join(folder, command)).find((path) => existsSync(path))
}

/**
 * Returns true if this machine has the prerequisite.
 * @param {Need} need
 */
export const isThere = (need) => (need.isThere ? need.isThere() : find(need.name) !== undefined)

/**
 * Lists the prerequisites that this machine lacks for the given kinds of npm scripts.
 * @param {readonly string[]} kinds
 * @param {boolean} mustBuild True if the addon has to be built.
 */
export function missingFor(kinds, mustBuild) {
  const wanted = NEEDS.filter((need) => need.for.some((kind) => kinds.includes(kind)) && (mustBuild || !need.toBuild))
  return wanted.filter((need) => !isThere(need))
}

/**
 * Lists the Debian packages that provide the prerequisites, each package only once.
 * @param {readonly Need[]} needs
 */
export const packagesOf = (needs) => [
  ...new Set(needs.flatMap((need) => (typeof need.package === 'function' ? need.package() : (need.package ?? [])))),
]

/**
 * Returns the command that installs Debian packages.
 * @param {readonly string[]} packages
 */
export const installLine = (packages) => `apt-get install -y --no-install-recommends ${packages.join(' ')}`

/**
 * Returns a clause for an error message that says how to get the missing prerequisites.
 * @param {readonly Need[]} missing
 */
function remedyFor(missing) {
  const packages = packagesOf(missing)
  const install = find('apt-get')
    ? `run: sudo apt-get update && sudo ${installLine(packages)}`
    : `install the packages that Debian calls ${packages.join(' ')}`
  return [...(packages.length > 0 ? [install] : []), ...missing.flatMap(({ remedy }) => remedy?.() ?? [])].join('; ')
}

const LACKS = 'this machine lacks '

/**
 * Returns the text of an error message or a skip reason: the missing prerequisites and how to get them.
 * @param {readonly Need[]} missing
 */
export const sayLack = (missing) =>
  `${LACKS}${[...new Set(missing.map(({ name }) => name))].join(', ')}: ${remedyFor(missing)}`

/**
 * True if a test was skipped because of a missing prerequisite, and not because of a choice of the user.
 * @param {string} reason The skip reason of the test.
 */
export const isLack = (reason) => reason.startsWith(LACKS)
