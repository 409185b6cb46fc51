// access.ts - where the API server is and what lets us in: a pod's service account, a kubeconfig, or a URL alone.
//
// All of it is read from disk again for each request: tokens, certificates and authorities rotate, and requests are few.

import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { messageOf, WeftError } from '../../base/errors.ts'
import { Secret, withoutUser } from '../../base/secret.ts'

/** The folder that kubelet puts into each pod (Kubernetes, "Accessing the API from within a Pod"). */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount'

export interface Access {
  /** The API server's URL, without a slash at the end and without a user. */
  readonly server: string
  /** The value of the header Authorization: a bearer's token, or user and password of the URL. */
  readonly authorization?: Secret
  /** PEM; the authorities that Node.js knows where left out. */
  readonly ca?: string
  /** PEM, of the client. */
  readonly cert?: string
  readonly key?: Secret
  /** The name that the server's certificate must have, when it is not the URL's host. */
  readonly serverName?: string
  /** True when any certificate is accepted. */
  readonly isInsecure?: boolean
}

export interface AccessOptions {
  /** The flags --kube-api-url and --kubeconfig-file; empty for none. */
  readonly apiUrl: Secret
  readonly kubeconfig: string
  readonly environment: NodeJS.ProcessEnv
  /** The folder in which kubelet puts a pod's credentials. */
  readonly serviceAccount?: string
}

/** Reads it as it is now. Throws WeftError STORE that says what is wrong with it. */
export async function readAccess(options: AccessOptions): Promise<Access> {
  const { apiUrl, kubeconfig } = options
  // The order is that of client-go's BuildConfigFromFlags.
  if (kubeconfig !== '') return readKubeconfig(kubeconfig, apiUrl.reveal())
  return apiUrl.isEmpty ? readServiceAccount(options) : serverOf(apiUrl.reveal(), '--kube-api-url')
}

const refuse = (message: string, remedy: string): WeftError =>
  new WeftError('STORE', `fail to create kubernetes config: ${message}`, { remedy }) // flannel's words

const bearer = (token: string): Secret => new Secret(`Bearer ${token}`)

function serverOf(text: string, where: string): Pick<Access, 'server' | 'authorization'> {
  // client-go takes a host without a scheme for http.
  const full = text.includes('://') ? text : `http://${text}`
  if (!URL.canParse(full) || !/^https?:/i.test(full))
    throw refuse(`${where} is ${JSON.stringify(withoutUser(text))}`, 'give it a URL such as https://10.0.0.1:6443')
  const url = new URL(full)
  const [user, password] = [url.username, url.password].map(decoded) as [string, string]
  url.username = url.password = ''
  const server = url.href.replace(/\/$/, '')
  if (user === '' && password === '') return { server }
  // Go's client does the same with a user in the URL (net/http, Request.URL): RFC 7617.
  return { server, authorization: new Secret(`Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`) }
}

/** Decodes percent escapes; anything that is no escape stays as it is. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

async function readPart(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw refuse(messageOf(error), 'put the file there, or name another kubeconfig with --kubeconfig-file')
  }
}

async function readServiceAccount({ environment, serviceAccount = SERVICE_ACCOUNT }: AccessOptions): Promise<Access> {
  const { KUBERNETES_SERVICE_HOST: host = '', KUBERNETES_SERVICE_PORT: port = '' } = environment
  if (host === '' || port === '') {
    throw refuse(
      'KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set',
      'run weftd in a pod, or name a kubeconfig with --kubeconfig-file',
    )
  }
  // Files are read one after another: of several that are missing the first is named, whatever the disk does.
  const token = await readPart(resolve(serviceAccount, 'token'))
  const ca = await readPart(resolve(serviceAccount, 'ca.crt'))
  return {
    server: `https://${host.includes(':') ? `[${host}]` : host}:${port}`,
    authorization: bearer(token.trim()),
    ca,
  }
}

/** The members of a kubeconfig that weft reads (client-go, tools/clientcmd/api/v1/types.go); a value may be of any type. */
interface Kubeconfig {
  readonly 'current-context'?: unknown
  readonly contexts?: readonly Named<'context'>[]
  readonly clusters?: readonly Named<'cluster'>[]
  readonly users?: readonly Named<'user'>[]
}
type Named<Kind extends string> = { readonly name?: unknown } & { readonly [kind in Kind]?: Section | null }
type Section = Readonly<Record<string, unknown>>

/** Members that weft refuses, each with what to do instead. */
const REFUSED: Readonly<Record<string, string>> = {
  exec: 'weft starts no program for a credential; give the user a token, a tokenFile or a certificate',
  'auth-provider': 'give the user a token, a tokenFile or a certificate',
  'proxy-url': 'give the cluster an address that this host reaches without a proxy',
}

async function readKubeconfig(path: string, apiUrl: string): Promise<Access> {
  const { parse, YAMLParseError } = await import('yaml') // a pod needs none
  const text = await readPart(path)
  let config: Kubeconfig
  try {
    config = (parse(text, { logLevel: 'error' }) ?? {}) as Kubeconfig
  } catch (error) {
    // YAML's own message is left out: it shows the lines around, which may have a token.
    const [{ line, col }] = (error instanceof YAMLParseError && error.linePos) || [{ line: 0, col: 0 }]
    const where = line === 0 ? '' : ` at line ${line}, column ${col}`
    throw refuse(`${path}: it is no YAML${where}`, 'mend the kubeconfig')
  }
  const find = <Kind extends string>(
    list: readonly Named<Kind>[] | undefined,
    kind: Kind,
    name: unknown,
  ): Section | undefined => {
    const found = Array.isArray(list) ? list.find((each: Named<Kind> | null) => each?.name === name) : undefined
    return found?.[kind] ?? undefined
  }
  const current = config['current-context']
  const context = find(config.contexts, 'context', current)
  if (!context)
    throw refuse(
      `${path}: there is no context ${JSON.stringify(current ?? '')}`,
      'set current-context to one that is there',
    )
  const cluster = find(config.clusters, 'cluster', context['cluster'])
  const user = find(config.users, 'user', context['user']) ?? {}
  for (const [name, remedy] of Object.entries(REFUSED))
    if (user[name] || cluster?.[name]) throw refuse(`${path} has ${JSON.stringify(name)}`, remedy)
  const server = apiUrl === '' ? cluster?.['server'] : apiUrl
  if (typeof server !== 'string' || server === '')
    throw refuse(`${path}: the cluster of the context has no server`, 'mend the kubeconfig, or give --kube-api-url')

  /** A value that stands there in base64 as NAME-data, or else in a file, whose path is the kubeconfig's to say. */
  const material = async (section: Section | undefined, name: string): Promise<string | undefined> => {
    const inline = section?.[`${name}-data`]
    if (typeof inline === 'string' && inline !== '') return Buffer.from(inline, 'base64').toString()
    const file = section?.[name]
    return typeof file === 'string' && file !== '' ? readPart(resolve(dirname(path), file)) : undefined
  }
  const ca = await material(cluster, 'certificate-authority')
  const cert = await material(user, 'client-certificate')
  const key = await material(user, 'client-key')
  const { token: given, tokenFile } = user
  // The file comes first, as with client-go: it is the one that rotates.
  const token =
    typeof tokenFile === 'string' && tokenFile !== ''
      ? (await readPart(resolve(dirname(path), tokenFile))).trim()
      : given
  const serverName = cluster?.['tls-server-name']
  return {
    ...serverOf(server, apiUrl === '' ? `the server in ${path}` : '--kube-api-url'),
    ...(typeof token === 'string' && token !== '' ? { authorization: bearer(token) } : {}),
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key: new Secret(key) }),
    ...(typeof serverName === 'string' && serverName !== '' ? { serverName } : {}),
    ...(cluster?.['insecure-skip-tls-verify'] === true ? { isInsecure: true } : {}),
  }
}
