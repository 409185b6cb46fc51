// tasks.mjs - defines the tasks of `npm run NAME`: for each task its prerequisites (machine.mjs), its commands and
// their environment variables.

import { ARCHITECTURES } from './release/architectures.mjs'

/**
 * Returns the command that runs the project's tests with vitest. run.mjs appends further arguments of the user to the
 * last command of a task.
 */
const vitest = (...words) => ['vitest', 'run', ...words]
const script = (path, ...words) => ['node', path, ...words]
/**
 * WEFT_PATIENCE multiplies the time limit of every wait in a test, because a busy machine needs longer. A higher limit
 * does not slow down tests that succeed.
 */
const PATIENT = { WEFT_PATIENCE: process.env.WEFT_PATIENCE ?? '3' }
/**
 * If WEFT_REQUIRE is set, a run fails if a test is skipped because the machine lacks a prerequisite
 * (summary-reporter.ts). npm scripts that the user runs by name set WEFT_REQUIRE.
 */
const STRICT = { ...PATIENT, WEFT_REQUIRE: '1' }
const LONG = { ...STRICT, WEFT_LONG: '1' }
const ARCHITECTURE_NAMES = ARCHITECTURES.map(({ debian }) => debian)

/**
 * @typedef {object} Task
 * @property {readonly string[]} setup The kinds of machine.mjs to set up. Only prerequisites of the kind `test` may be
 * missing.
 * @property {readonly (readonly string[])[]} commands The commands, which run one after another until one fails.
 * @property {string} [usage] The words that the task's own script accepts, for `--help`; a task without `usage` passes
 * `--help` to its last command.
 * @property {RegExp} [accepts] Matches each word that the task accepts. If it is missing, the task's script checks the
 * words itself.
 * @property {boolean} [makesHosts] True if the task simulates hosts. If this machine cannot do that, the task fails
 *   before anything is set up.
 * @property {Readonly<Record<string, string>>} [env]
 * @property {Readonly<Record<string, string>>} [made] Environment variables that contain the path of a program, each
 * with the script that builds the program and prints the path. The script does not run if the user has set the
 * variable.
 */

const NO_WORDS = { usage: '', accepts: /^$/ }

/** @type {Readonly<Record<string, Task>>} */
export const TASKS = {
  build: {
    ...NO_WORDS,
    setup: ['build'],
    commands: [['tsc', '-p', 'tsconfig.json'], script('scripts/build-page.mjs')],
  },
  'build:native': { setup: ['build'], commands: [['node-gyp', 'build']] },
  demo: { setup: ['demo'], makesHosts: true, commands: [script('dist/lab/demo.js')] },
  bench: { setup: ['bench'], commands: [script('dist/bench/main.js')] },
  'bench:compare': { setup: ['bench'], commands: [script('dist/bench/main.js', 'compare')] },
  'lint:ts': {
    ...NO_WORDS,
    setup: ['lint'],
    commands: [
      ['tsc', '-p', 'tsconfig.json', '--noEmit'],
      ['tsc', '-p', 'src/report/page'],
      ['tsc', '-p', 'test/page'],
      ['oxlint', '--type-aware', '--deny-warnings'],
      script('scripts/lint-exports.mjs'),
      script('scripts/lint-keys.mjs'),
      ['oxfmt', '--check'],
      script('scripts/alert-rules.mjs', '--check'),
    ],
  },
  'lint:native': {
    usage: '[--fix]',
    accepts: /^--fix$/,
    setup: ['lint'],
    commands: [script('scripts/lint-native.mjs')],
  },
  'lint:words': {
    usage: '[FILE...]',
    accepts: /\.(?:ts|mjs|h|cc|md)$/,
    setup: ['lint'],
    commands: [script('scripts/lint-words.mjs')],
  },
  format: {
    ...NO_WORDS,
    setup: ['lint'],
    commands: [script('scripts/alert-rules.mjs'), ['oxfmt'], script('scripts/lint-native.mjs', '--fix')],
  },
  // `npm test` runs the tests that test/selection.json chooses, because WEFT_SELECTION is set. `npm run test:whole`
  // runs all tests.
  test: { setup: ['test'], env: { ...PATIENT, WEFT_SELECTION: '1' }, commands: [vitest()] },
  'test:whole': { setup: ['test'], env: PATIENT, commands: [vitest()] },
  'test:all': {
    usage: '[--again] [SCRIPT...]',
    accepts: /^(--again|test:[\w-]+|[\w-]+:test)$/,
    setup: ['test', 'stubborn'],
    commands: [script('scripts/test-all.mjs')],
  },
  'test:stubborn': {
    usage: '[N] [FILE...]',
    setup: ['test', 'stubborn'],
    env: STRICT,
    commands: [script('scripts/stubborn.mjs')],
  },
  'test:soak': {
    setup: ['test', 'soak'],
    env: LONG,
    commands: [
      vitest(
        'test/sim',
        'test/store',
        'test/unit/path/backends/wireguard/schedules.test.ts',
        ...['outages', 'hosts', 'following', 'soak', 'storm', 'filter', 'flood', 'wireguard-flood'].map(
          (name) => `test/netns/${name}.test.ts`,
        ),
      ),
    ],
  },
  'test:paths': { setup: ['test', 'paths'], env: LONG, commands: [vitest('test/netns/paths.test.ts')] },
  'test:fuzz': {
    usage: '[SECONDS] [--processes=N] [--keep]',
    accepts: /^(?!0+$)\d+$|^--processes=[1-9]\d*$|^--keep$/,
    setup: ['fuzz'],
    env: LONG,
    commands: [vitest('test/native/core.test.ts'), script('scripts/fuzz.mjs')],
  },
  'test:arch': {
    usage: `[${ARCHITECTURE_NAMES.join('|')}]...`,
    accepts: new RegExp(`^(?:${ARCHITECTURE_NAMES.join('|')})$`),
    setup: ['arch'],
    commands: [script('scripts/test-arch.mjs')],
  },
  'test:vm': {
    usage:
      '[--kernel VERSION] [FILE... [OPTION OF VITEST...]] or, to run any command in the machine: npm run test:vm -- [--kernel VERSION] -- COMMAND...',
    setup: ['test', 'vm'],
    env: STRICT,
    commands: [script('scripts/test-vm.mjs')],
  },
  'test:etcd': {
    usage: '[FILE... [OPTION OF VITEST...]]',
    setup: ['test', 'etcd'],
    env: STRICT,
    commands: [script('scripts/test-etcd.mjs')],
  },
  'test:kube': {
    setup: ['test', 'kube'],
    env: LONG,
    made: {
      WEFT_KUBE_APISERVER: 'scripts/kube-apiserver.mjs',
      WEFT_HELM: 'scripts/helm.mjs',
      WEFT_CHART_TOOLS: 'scripts/chart-tools.mjs',
    },
    commands: [vitest('test/kube')],
  },
  'test:kubelet': {
    setup: ['test', 'kubelet'],
    env: STRICT,
    made: { WEFT_KUBELET: 'scripts/kubelet.mjs' },
    commands: [vitest('--project', 'kubelet')],
  },
  'test:cluster': {
    setup: ['test', 'cluster'],
    env: { ...STRICT, WEFT_CLUSTER: '1' },
    made: {
      WEFT_CLUSTER_PROGRAMS: 'scripts/cluster-programs.mjs',
      WEFT_CLUSTER_IMAGE: 'scripts/cluster-image.mjs',
      WEFT_HELM: 'scripts/helm.mjs',
    },
    // The tests of architectures.test.ts need a release.
    commands: [
      vitest('--project', 'cluster', ...(process.env.WEFT_RELEASE_DIR ? [] : ['test/cluster/cluster.test.ts'])),
    ],
  },
  'test:mutants': {
    usage: '[AREA...] [--number N] [--share PART] [--minutes N] [--seed N] [--survivors]',
    setup: ['mutants'],
    commands: [script('scripts/mutants.mjs')],
  },
  'test:page': { setup: ['test', 'page'], env: { ...STRICT, WEFT_PAGE: '1' }, commands: [vitest('--project', 'page')] },
  'test:broken': {
    setup: ['test', 'broken'],
    env: { ...STRICT, WEFT_BROKEN: '1' },
    commands: [vitest('--project', 'broken')],
  },
  release: {
    usage: `[--image REGISTRY/weft] [--arch ${ARCHITECTURE_NAMES.join(',')}]`,
    // Matches an option, the name of an image, or a list of architectures. The task's script checks whether the words
    // fit together.
    accepts: new RegExp(`^--(?:image|arch)(?:=.*)?$|^[^-].*/|^(?:(?:${ARCHITECTURE_NAMES.join('|')})(?:,|$))+$`),
    setup: ['release'],
    // Two releases at the same time would write the same files, so flock makes the second release wait for the first.
    commands: [['flock', '--no-fork', 'scripts/release', ...script('scripts/release/main.mjs')]],
  },
  'release:test': {
    setup: ['test', 'release', 'image'],
    env: { ...STRICT, WEFT_RELEASE: '1' },
    commands: [vitest('--project', 'release')],
  },
  'image:test': {
    setup: ['test', 'image'],
    env: { ...STRICT, WEFT_IMAGE: '1' },
    commands: [vitest('--project', 'image')],
  },
}
